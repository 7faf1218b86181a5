//! Reads KVTRACE1 files; bench/internal/trace/doc.go has the format.
use std::fs::File;

pub struct Trace {
    map: memmap2::Mmap,
    pub workers: usize,
    pub ops: u64,
    pub stored: u64,
    pub removed: u64,
}

pub enum Op<'a> {
    /// `depths` is the exact answer: for each worker the number of blocks that it holds, from the first on.
    Query { depths: &'a [u16], locals: &'a [u64], _seqs: &'a [u64] },
    /// `blocks` has pairs of a local hash and a sequence hash.
    Stored { worker: u32, parent: Option<u64>, blocks: &'a [[u64; 2]] },
    Removed { worker: u32, hashes: &'a [u64] },
    Probe { depths: &'a [u16], locals: &'a [u64], _seqs: &'a [u64] },
}

fn cast<T>(b: &[u8]) -> &[T] {
    assert_eq!(b.as_ptr() as usize % std::mem::align_of::<T>(), 0);
    unsafe { std::slice::from_raw_parts(b.as_ptr().cast(), b.len() / std::mem::size_of::<T>()) }
}

impl Trace {
    pub fn open(path: &str) -> Self {
        let f = File::open(path).unwrap();
        let map = unsafe { memmap2::Mmap::map(&f).unwrap() };
        assert_eq!(&map[..8], b"KVTRACE1");
        let u32at = |o: usize| u32::from_le_bytes(map[o..o + 4].try_into().unwrap());
        let u64at = |o: usize| u64::from_le_bytes(map[o..o + 8].try_into().unwrap());
        assert_eq!(u32at(8), 1);
        Self {
            workers: u32at(12) as usize,
            ops: u64at(24),
            stored: u64at(32),
            removed: u64at(40),
            map,
        }
    }
    pub fn for_each<'a>(&'a self, mut f: impl FnMut(Op<'a>)) {
        let b = &self.map[..];
        let dlen = (self.workers * 2 + 7) / 8 * 8;
        let mut o = 64;
        for _ in 0..self.ops {
            let h: &[u32] = cast(&b[o..o + 16]);
            let (ty, worker, n, hp) = (h[0], h[1], h[2] as usize, h[3]);
            let parent: u64 = cast::<u64>(&b[o + 16..o + 24])[0];
            o += 24;
            match ty {
                0 | 3 => {
                    let depths = &cast::<u16>(&b[o..o + dlen])[..self.workers];
                    o += dlen;
                    let locals = cast(&b[o..o + 8 * n]);
                    let seqs = cast(&b[o + 8 * n..o + 16 * n]);
                    o += 16 * n;
                    f(if ty == 0 {
                        Op::Query { depths, locals, _seqs: seqs }
                    } else {
                        Op::Probe { depths, locals, _seqs: seqs }
                    });
                }
                1 => {
                    let blocks = cast(&b[o..o + 16 * n]);
                    o += 16 * n;
                    f(Op::Stored { worker, parent: (hp == 1).then_some(parent), blocks });
                }
                2 => {
                    let hashes = cast(&b[o..o + 8 * n]);
                    o += 8 * n;
                    f(Op::Removed { worker, hashes });
                }
                _ => panic!("bad record"),
            }
        }
        assert_eq!(o, b.len());
    }
}
