// As much of the CUDA driver as minfer calls, over the emulated GPU. Memory of the device is memory of the process;
// what is asked for is done at once, but a launch that may start before the one before it has ended: that one is
// kept until the other waits for it.
#include "driver.hpp"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "machine.hpp"

// From the linker: where the kernels lie whose clusters have two blocks (`__cluster_dims__`).
extern "C" const char __start_in_clusters_of_2[] __attribute__((weak)), __stop_in_clusters_of_2[] __attribute__((weak));

namespace emulated {
std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}
namespace {

enum Status {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_FOUND = 500,
  OUT_OF_RESOURCES = 701,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801
};

constexpr size_t TOTAL = size_t{4} << 30;
constexpr uint32_t REGISTERS = 64 << 10, SHARED = 48 << 10, MOST_SHARED = 227 << 10;
// Memory begins at multiples of 256 bytes and ends, but for that, where no access is allowed.
constexpr size_t GUARD = 64 << 10, GRAIN = 256;
// What lies between: sums of it are something else, which those of NaN need not be.
constexpr int BEHIND = 0x7f;
size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

struct Attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct { uint32_t x, y, z; } cluster;
    int allowed;
  };
};
constexpr int CLUSTER_DIMENSION = 4, PROGRAMMATIC_SERIALIZATION = 6;
struct Config {
  uint32_t grid[3], block[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  uint32_t n_attributes;
};

struct Driver {
  // Weights come from several threads.
  std::recursive_mutex mutex;
  std::map<uint64_t, size_t> allocations;
  size_t n_bytes = 0;
  int status = SUCCESS;  // of what ran last, until somebody asks
  std::unique_ptr<Launch> kept;
  uint32_t chain = 0;
  std::vector<std::function<void()>>* recording = nullptr;

  // Runs what is kept.
  void settle() {
    if (auto launch = std::move(kept)) finish(*launch);
  }
  void finish(const Launch& launch) {
    if (const char* why = run(launch)) {
      fprintf(stderr, "emulated GPU: %s: %s\n", launch.name, why);
      status = LAUNCH_FAILED;
    }
  }
  void start(const Launch& launch, bool chained) {
    // Two meet, not three: which of a row of launches they are changes.
    chain = chain * 1664525 + 1013904223;
    if (!chained || chain >> 30 == 0) settle();
    if (!kept) {
      kept = std::make_unique<Launch>(launch);
      return;
    }
    const auto before = std::move(kept);
    Launch one = launch;
    one.before = before.get();
    finish(one);
  }
  // Does it, or writes it down.
  int perform(std::function<void()> what) {
    const std::lock_guard guard(mutex);
    if (recording) {
      recording->push_back(std::move(what));
    } else {
      what();
    }
    return SUCCESS;
  }
  int ask() {
    const std::lock_guard guard(mutex);
    settle();
    for (const auto& [at, n] : allocations) {
      uint8_t* const first = reinterpret_cast<uint8_t*>(at);
      const auto is_left = [](uint8_t byte) { return byte == BEHIND; };
      if (std::all_of(first + n, first + rounded(n, GRAIN), is_left)) continue;
      fprintf(stderr, "emulated GPU: something was written behind %zu bytes of memory\n", n);
      memset(first + n, BEHIND, rounded(n, GRAIN) - n);
      status = LAUNCH_FAILED;
    }
    return std::exchange(status, int{SUCCESS});
  }
};
Driver driver;

using Recording = std::vector<std::function<void()>>;

int number(const char* value, int other) { return value ? atoi(value) : other; }
int attribute_of(int what) {
  switch (what) {
    case 1: return 1024;           // threads of a block
    case 8: return 48 << 10;       // shared memory of a block
    case 16: return number(getenv("EMULATED_MULTIPROCESSORS"), 16);
    case 39: return 2048;          // threads of a multiprocessor
    case 75: return number(getenv("EMULATED_COMPUTE"), 9);  // compute capability
    case 76: return 0;
    case 81: return 228 << 10;     // shared memory of a multiprocessor
    case 97: return 227 << 10;     // of a block that asks for it
    case 111: return 1 << 10;      // of that, what the system takes
    case 120: return 1;            // launches of clusters
    default: return 0;
  }
}

}  // namespace
}  // namespace emulated

using namespace emulated;
#define API extern "C" __attribute__((visibility("default"))) int

API cuInit(unsigned) { return SUCCESS; }
API cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
API cuDeviceGetCount(int* n) { return *n = 1, SUCCESS; }
API cuDeviceGet(int* device, int i) { return *device = 0, i ? 101 : SUCCESS; }
API cuDeviceGetName(char* name, int n, int) {
  strncpy(name, "emulated GPU", static_cast<size_t>(n));
  return SUCCESS;
}
API cuDeviceGetAttribute(int* value, int what, int) { return *value = attribute_of(what), SUCCESS; }
API cuDeviceTotalMem_v2(size_t* n, int) { return *n = TOTAL, SUCCESS; }
API cuDevicePrimaryCtxRetain(void** context, int) { return *context = &driver, SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuCtxGetCurrent(void** context) { return *context = &driver, SUCCESS; }
API cuCtxSynchronize() { return driver.ask(); }
API cuCtxSetCurrent(void*) { return SUCCESS; }
API cuMemGetInfo_v2(size_t* free, size_t* total) { return *total = TOTAL, *free = TOTAL - driver.n_bytes, SUCCESS; }

API cuGetErrorName(int status, const char** name) {
  switch (status) {
    case SUCCESS: return *name = "CUDA_SUCCESS", SUCCESS;
    case OUT_OF_MEMORY: return *name = "CUDA_ERROR_OUT_OF_MEMORY", SUCCESS;
    case NOT_FOUND: return *name = "CUDA_ERROR_NOT_FOUND", SUCCESS;
    case OUT_OF_RESOURCES: return *name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", SUCCESS;
    case LAUNCH_FAILED: return *name = "CUDA_ERROR_LAUNCH_FAILED", SUCCESS;
    case NOT_SUPPORTED: return *name = "CUDA_ERROR_NOT_SUPPORTED", SUCCESS;
    default: return *name = "CUDA_ERROR_INVALID_VALUE", SUCCESS;
  }
}
API cuGetErrorString(int status, const char** name) { return cuGetErrorName(status, name); }

API cuMemAlloc_v2(uint64_t* at, size_t n) {
  const std::lock_guard guard(driver.mutex);
  driver.settle();
  if (n == 0) return INVALID_VALUE;
  if (driver.n_bytes + n > TOTAL) return OUT_OF_MEMORY;
  const size_t n_space = rounded(n, GUARD);
  void* const space = mmap(nullptr, n_space + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return OUT_OF_MEMORY;
  uint8_t* const first = static_cast<uint8_t*>(space) + GUARD;
  if (mprotect(first, n_space, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
  const size_t n_used = rounded(n, GRAIN);
  memset(first + n_space - n_used, 0xff, n);
  memset(first + n_space - n_used + n, BEHIND, n_used - n);
  *at = reinterpret_cast<uint64_t>(first + n_space - n_used);
  driver.allocations[*at] = n;
  driver.n_bytes += n;
  return SUCCESS;
}
API cuMemFree_v2(uint64_t at) {
  const std::lock_guard guard(driver.mutex);
  driver.settle();
  const auto found = driver.allocations.find(at);
  if (found == driver.allocations.end()) return INVALID_VALUE;
  const size_t n = found->second, n_space = rounded(n, GUARD);
  driver.n_bytes -= n;
  driver.allocations.erase(found);
  munmap(reinterpret_cast<uint8_t*>(at) + rounded(n, GRAIN) - n_space - GUARD, n_space + 2 * GUARD);
  return SUCCESS;
}
API cuMemAllocAsync(uint64_t* at, size_t n, void*) { return cuMemAlloc_v2(at, n); }
API cuMemFreeAsync(uint64_t at, void*) { return cuMemFree_v2(at); }
API cuMemHostAlloc(void** at, size_t n, unsigned) {
  *at = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  return *at ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFreeHost(void* at) { return free(at), SUCCESS; }
API cuMemHostRegister_v2(void*, size_t, unsigned) { return SUCCESS; }
API cuMemHostUnregister(void*) { return SUCCESS; }

API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, void*) {
  return driver.perform([=] { driver.settle(), memcpy(reinterpret_cast<void*>(to), from, n); });
}
API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n, void*) {
  return driver.perform([=] { driver.settle(), memcpy(to, reinterpret_cast<void*>(from), n); });
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void*) {
  return driver.perform([=] { driver.settle(), memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n); });
}
API cuMemsetD32Async(uint64_t to, unsigned value, size_t n, void*) {
  return driver.perform([=] { driver.settle(), std::fill_n(reinterpret_cast<uint32_t*>(to), n, value); });
}
API cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n) { return cuMemcpyDtoHAsync_v2(to, from, n, nullptr); }
API cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n) { return cuMemcpyHtoDAsync_v2(to, from, n, nullptr); }
API cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void*) {
  return driver.perform([=] { driver.settle(), memset(reinterpret_cast<void*>(to), value, n); });
}

API cuStreamCreate(void** stream, unsigned) { return *stream = malloc(1), SUCCESS; }
API cuStreamDestroy_v2(void* stream) { return free(stream), SUCCESS; }
API cuStreamSynchronize(void*) { return driver.ask(); }
API cuStreamWaitEvent(void*, void*, unsigned) { return SUCCESS; }
API cuEventCreate(void** event, unsigned) { return *event = malloc(1), SUCCESS; }
API cuEventDestroy_v2(void* event) { return free(event), SUCCESS; }
API cuEventRecord(void*, void*) { return SUCCESS; }
API cuEventSynchronize(void*) { return driver.ask(); }
API cuEventQuery(void*) { return driver.ask(); }
API cuEventElapsedTime(float* ms, void*, void*) { return *ms = 1.0f, SUCCESS; }
API cuEventElapsedTime_v2(float* ms, void*, void*) { return *ms = 1.0f, SUCCESS; }

API cuStreamBeginCapture_v2(void*, int) { return driver.recording = new Recording, SUCCESS; }
API cuStreamEndCapture(void*, void** graph) {
  *graph = std::exchange(driver.recording, nullptr);
  return *graph ? SUCCESS : INVALID_VALUE;
}
API cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
  return *made = new Recording(*static_cast<Recording*>(graph)), SUCCESS;
}
API cuGraphDestroy(void* graph) { return delete static_cast<Recording*>(graph), SUCCESS; }
API cuGraphExecDestroy(void* made) { return delete static_cast<Recording*>(made), SUCCESS; }
API cuGraphLaunch(void* made, void*) {
  const std::lock_guard guard(driver.mutex);
  for (const auto& one : *static_cast<Recording*>(made)) one();
  return SUCCESS;
}

// Words of a map, as emulated/hopper.hpp reads them: address, elements of a row, rows, bytes from row to row, and of a
// box elements of a row and rows.
API cuTensorMapEncodeTiled(uint64_t* map, int, unsigned rank, void* address, const uint64_t* dims,
                           const uint64_t* strides, const unsigned* boxes, const unsigned* steps, int interleave,
                           int swizzle, int, int fill) {
  constexpr int SWIZZLE_128 = 3;
  if (rank != 2 || boxes[0] != 64 || interleave || swizzle != SWIZZLE_128 || fill) return NOT_SUPPORTED;
  if (reinterpret_cast<uintptr_t>(map) % 64 || reinterpret_cast<uintptr_t>(address) % 16) return INVALID_VALUE;
  if (strides[0] % 16 || boxes[1] == 0 || boxes[1] > 256 || steps[0] != 1 || steps[1] != 1) return INVALID_VALUE;
  const uint64_t words[16] = {reinterpret_cast<uint64_t>(address), dims[0], dims[1], strides[0], boxes[0], boxes[1]};
  memcpy(map, words, sizeof words);
  return SUCCESS;
}

API cuModuleLoadData(void** module, const void*) { return *module = malloc(1), SUCCESS; }
API cuModuleUnload(void* module) { return free(module), SUCCESS; }
API cuModuleGetFunction(void** function, void*, const char* name) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) {
    fprintf(stderr, "emulated GPU: kernel %s is not emulated\n", name);
    return NOT_FOUND;
  }
  return *function = &found->second, SUCCESS;
}
API cuFuncSetAttribute(void* function, int what, int value) {
  constexpr int MOST_DYNAMIC_SHARED = 8;
  if (what != MOST_DYNAMIC_SHARED) return SUCCESS;
  Kernel& kernel = *static_cast<Kernel*>(function);
  if (value < 0 || static_cast<uint32_t>(value) + kernel.n_variable_bytes > MOST_SHARED) return INVALID_VALUE;
  return kernel.most_shared = static_cast<uint32_t>(value), SUCCESS;
}
API cuFuncGetAttribute(int* value, int, void*) { return *value = 0, SUCCESS; }
API cuOccupancyMaxActiveClusters(int* n, void*, const Config*) { return *n = 16, SUCCESS; }

API cuLaunchKernelEx(const Config* config, void* function, void** params, void**) {
  Launch launch{};
  launch.grid = {config->grid[0], config->grid[1], config->grid[2]};
  launch.block = {config->block[0], config->block[1], config->block[2]};
  const Kernel& kernel = *static_cast<Kernel*>(function);
  const bool in_pairs = kernel.code >= __start_in_clusters_of_2 && kernel.code < __stop_in_clusters_of_2;
  launch.cluster = in_pairs ? 2 : 1;
  launch.shared_bytes = config->shared_bytes;
  bool chained = false;
  for (uint32_t i = 0; i < config->n_attributes; i++) {
    const Attribute& one = config->attributes[i];
    if (one.id == CLUSTER_DIMENSION) launch.cluster = one.cluster.x;
    if (one.id == PROGRAMMATIC_SERIALIZATION) chained = one.allowed;
  }
  const uint32_t n_threads = launch.block.x * launch.block.y * launch.block.z;
  if (n_threads == 0 || n_threads > 1024 || launch.block.z != 1) return INVALID_VALUE;
  if (launch.shared_bytes > std::max(kernel.most_shared, SHARED - kernel.n_variable_bytes)) return INVALID_VALUE;
  if (launch.cluster == 0 || launch.cluster > 16 || launch.grid.x % launch.cluster) return INVALID_VALUE;
  if (!launch.grid.x || !launch.grid.y || !launch.grid.z) return INVALID_VALUE;
  if (launch.grid.x > INT32_MAX || launch.grid.y > 65535 || launch.grid.z > 65535) return INVALID_VALUE;
  if (rounded(kernel.n_registers, 8) * rounded(n_threads, WARP) > REGISTERS) return OUT_OF_RESOURCES;
  launch.name = kernel.name.c_str();
  launch.body = kernel.body(params);
  return driver.perform([=] { driver.start(launch, chained); });
}
API cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void* stream, void** params, void** extra) {
  const Config config{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, nullptr, 0};
  return cuLaunchKernelEx(&config, function, params, extra);
}
