#!/usr/bin/env bash
# Makes ../../unicode.bin: the properties that every code point has in Hugging Face's Rust tokenizer. Its crates have
# tables of four Unicode versions (Oniguruma 16.0, normalization 9.0, categories 8.0, the compiler's own), so a
# program asks the crates themselves. The grapheme table is not public, so it is read from the crate's source. The
# script needs cargo and a C compiler, and takes a minute.
set -euo pipefail
cd "$(dirname "$0")"
target="${CARGO_TARGET_DIR:-$(mktemp -d)}"
cargo build --quiet --release --locked --target-dir "$target"
source_dir=$(cargo metadata --locked --format-version 1 | tr ',' '\n' | grep -o '"manifest_path":"[^"]*unicode-segmentation[^"]*' | head -1 | cut -d'"' -f4)
{
  "$target/release/unidump"
  sed -n '/const grapheme_cat_table/,/];/p' "$(dirname "$source_dir")/src/tables.rs" | tr '\n' ' ' | tr -s ' ' |
    grep -oE "\('\\\\u\{[0-9a-f]+\}', '\\\\u\{[0-9a-f]+\}',[ ]*GC_[A-Za-z_]+\)" | sed -E "s/\('\\\\u\{([0-9a-f]+)\}', '\\\\u\{([0-9a-f]+)\}', *GC_([A-Za-z_]+)\)/grapheme \1 \2 \3/"
} >"$target/unidump.txt"
go run gen.go <"$target/unidump.txt" >../../unicode.bin
