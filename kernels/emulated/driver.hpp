// Kernels by their names, for the driver.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <tuple>

namespace emulated {

struct Kernel {
  // From addresses of a launch's parameters, what each of its threads does.
  std::function<std::function<void()>(void**)> body;
  const void* code;
  std::string name;
  // What the compiler for GPUs made of it: registers of a thread, and bytes of shared variables.
  uint32_t n_registers, n_variable_bytes;
  // What it may ask for beyond the 48 KiB that every kernel may.
  uint32_t most_shared = 0;
};
std::map<std::string, Kernel>& kernels();

struct Registered {
  template <class... A>
  Registered(const char* name, void (*kernel)(A...), uint32_t n_registers, uint32_t n_variable_bytes) {
    const auto body = [kernel](void** params) { return bind(kernel, params, std::index_sequence_for<A...>{}); };
    kernels()[name] = Kernel{body, reinterpret_cast<const void*>(kernel), name, n_registers, n_variable_bytes};
  }

 private:
  template <class... A, size_t... I>
  static std::function<void()> bind(void (*kernel)(A...), void** params, std::index_sequence<I...>) {
    std::tuple<std::decay_t<A>...> values(*static_cast<std::decay_t<A>*>(params[I])...);
    return [kernel, values] { std::apply(kernel, values); };
  }
};

}  // namespace emulated
