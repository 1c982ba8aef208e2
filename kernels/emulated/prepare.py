#!/usr/bin/env python3
"""Makes C++ of the CUDA kernels, for the emulated GPU.

usage: prepare.py OUT      from the project's root

Into OUT go the sources below kernels/cuda, changed, and for each module that scripts/kernels.sh names a NAME.cpp that
includes its source, in a namespace of its own, and registers the kernels that kernels/dist/NAME.sass lists.

What is changed:
- Functions and structures with inline assembly are left out: asm.hpp and hopper.hpp have some of the same name (what
  is missing there does not compile). So are statements of assembly without operands, which are fences and hints.
- Shared memory is asked of the block.
"""
import os
import re
import sys

SOURCES, LISTS, MODULES = 'kernels/cuda', 'kernels/dist', 'scripts/kernels.sh'

# Up to the brace that opens the body; the last is the declaration of a structure.
DEFINITION = re.compile(
    r'^(?:template <[^\n]*>\s)?(?:(?:DEV|__device__ __forceinline__) [^;{}]*\{|struct (\w+)(?:<\w+>)? \{)', re.M)
DECLARATION = r'^template <[^\n]*>\s(?:struct|class) %s;\n'
FENCE = re.compile(r'asm volatile\("[^"]*"\s*:::\s*"memory"\);')
DYNAMIC = re.compile(r'extern __shared__ (?:__align__\(\d+\) )?uint8_t (\w+)\[\];')
VARIABLES = re.compile(r'__shared__ ([\w ]+?) (\w+(?:\[[^;]*\])*(?:, \w+(?:\[[^;]*\])*)*);')
KERNEL = re.compile(r'^(\w+): reg=(\d+) stack=\d+ shared=(\d+) ', re.M)
VARIABLE = re.compile(r'(\w+)((?:\[[^\]]*\])*)(?:, |$)')


def end_of_block(text, at):
    """Behind the brace that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += {'{': 1, '}': -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise SystemExit('unbalanced braces')


def without_assembly(text):
    parts, at, structures = [], 0, set()
    for match in DEFINITION.finditer(text):
        end = end_of_block(text, match.end() - 1)
        body = text[match.end():end]
        # A function that is nothing but a fence has a twin too; in others fences are left out below.
        rest = re.sub(r'^#.*$', '', FENCE.sub('', body[:-1]), flags=re.M)
        has_assembly = re.search(r'\basm\b', rest) or FENCE.search(body) and not rest.strip()
        if match.start() < at or not has_assembly:
            continue
        structure = match.group(1)
        if structure:
            structures.add(structure)
            end = text.index(';', end) + 1
        parts.append(text[at:match.start()])
        at = end
    text = ''.join(parts + [text[at:]])
    for name in structures:
        text = re.sub(DECLARATION % name, '', text, flags=re.M)
    return FENCE.sub('', text)


def shared_variables(match):
    kind = match.group(1)
    return ' '.join(f'using type_of_{name} = {kind}{dims}; '
                    f'auto& {name} = emulated::shared_variable<type_of_{name}>([] {{}});'
                    for name, dims in VARIABLE.findall(match.group(2)))


def convert(text, path):
    text = without_assembly(text)
    text = DYNAMIC.sub(r'uint8_t* const \1 = shared_memory();', text)
    text = VARIABLES.sub(shared_variables, text)
    for word in ('__shared__', 'asm volatile', 'asm('):
        if word in text:
            raise SystemExit(f'{path}: `{word}` where it is not understood: {text[text.index(word):][:100]}')
    return text


def main():
    out, = sys.argv[1:]
    for folder, _, files in os.walk(SOURCES):
        for name in files:
            path = os.path.join(folder, name)
            to = os.path.join(out, 'cuda', os.path.relpath(path, SOURCES))
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with open(path) as source, open(to, 'w') as target:
                target.write(convert(source.read(), path))
    for name in ('cuda_fp16.h', 'cuda_bf16.h'):
        with open(os.path.join(out, name), 'w') as header:
            header.write('// Known before: emulated/cuda.hpp.\n')
    modules = re.findall(r'^    (\w+)=(\S+\.cu)$', open(MODULES).read(), re.M)
    for name, source in modules:
        kernels = KERNEL.findall(open(f'{LISTS}/{name}.sass').read())
        lines = ['#include "hopper.hpp"', '#include "driver.hpp"', f'namespace module_{name} {{', f'#include "cuda/{source}"']
        lines += [f'static const emulated::Registered register_{kernel}("{kernel}", &{kernel}, {registers}, {shared});'
                  for kernel, registers, shared in kernels]
        with open(os.path.join(out, name + '.cpp'), 'w') as module:
            module.write('\n'.join(lines + ['}', '']))


main()
