#!/usr/bin/env bash
# make_cuda_stubs.sh VENV: lets PyPI's torch, which is built for CUDA, run on a CPU without the 2.7 GB of nvidia-*
# wheels. Writes small libraries into torch/lib with the sonames and symbol versions that torch asks for. The functions
# in these libraries return 100 (cudaErrorNoDevice) or, if they return a text, an error text. Needs gcc and binutils.
set -euo pipefail
packages=$(ls -d "$1"/lib/python3*/site-packages)
lib=$packages/torch/lib
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -f "$lib"/libcu*.so.* "$lib"/libnv*.so.* "$lib"/libnccl.so.* # removes the stubs of an earlier run; real libraries are in nvidia/

# The libraries that torch needs, the symbols that it leaves undefined, and the symbol version of each library.
libs=$(for f in "$lib"/*.so*; do readelf -d "$f" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p'; done |
  sort -u | grep -E '^lib(cu|nv|nccl)' | grep -v '^libcuda\.so')
for f in "$lib"/lib*.so* "$packages"/torch/_C*.so "$packages"/torchvision/*.so; do
  [ -e "$f" ] && nm -D --undefined-only --with-symbol-versions "$f" | awk '{print $2}'
done | sort -u >"$work/undefined"
for f in "$lib"/*.so* "$packages"/torch/_C*.so; do
  readelf -VW "$f" 2>/dev/null |
    awk '/File: /{f=$0; sub(/.*File: /,"",f); sub(/ .*/,"",f)} /Name: /{v=$0; sub(/.*Name: /,"",v); sub(/ .*/,"",v); print f, v}'
done | sort -u | grep -E '^lib(cu|nv|nccl)' >"$work/versions"

for l in $libs; do
  version=$(awk -v l="$l" '$1==l{print $2; exit}' "$work/versions")
  echo "$version" >"$work/$l.version"
  : >"$work/$l.symbols"
  [ -z "$version" ] || grep -E "@+$version\$" "$work/undefined" | sed 's/@.*//' | sort -u >"$work/$l.symbols" || true
done
# Symbols without a version go into one library.
grep -v '@' "$work/undefined" |
  grep -E '^(cu[A-Z]|cuda|cudnn|cublas|cusparse|cusolver|cufft|curand|cupti|nccl|nvrtc|nvshmem|nvJitLink|__cuda)' |
  sort -u >>"$work/libnccl.so.2.symbols" || true

for l in $libs; do
  {
    for s in $(sort -u "$work/$l.symbols"); do
      case $s in
      *GetErrorString | *GetErrorName | *GetStatusString | *GetStatusName | *getErrorString | *ErrorString)
        echo "const char* $s(void){return \"CUDA stub: no device\";}"
        ;;
      *) echo "long $s(void){return 100;}" ;;
      esac
    done
    echo "int stub_$(echo "$l" | tr -c 'a-zA-Z0-9\n' _);"
  } >"$work/stub.c"
  version=$(cat "$work/$l.version")
  script=()
  if [ -n "$version" ]; then
    echo "$version { global: *; };" >"$work/version.map"
    script=(-Wl,--version-script="$work/version.map")
  fi
  gcc -w -fno-builtin -shared -fPIC -o "$lib/$l" -Wl,-soname,"$l" "${script[@]}" "$work/stub.c"
done
"$1/bin/python" -c 'import torch; assert not torch.cuda.is_available(); print("torch", torch.__version__, "without nvidia wheels")'
