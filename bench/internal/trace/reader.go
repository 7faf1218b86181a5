package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Trace is an opened file. It is immutable, and any number of Readers may read it at the same time.
type Trace struct {
	Header
	data  []byte
	unmap func() error
}

// Parse reads the header of a file. It keeps data, the bytes of the file.
func Parse(data []byte) (*Trace, error) {
	if len(data) < headerSize || string(data[:8]) != magic {
		return nil, errors.New("parse trace: not a KVTRACE1 file")
	}
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	t := &Trace{data: data, Header: Header{
		Version: u32(data[8:]), Workers: u32(data[12:]), BlockSize: u32(data[16:]),
		Records: u64(data[24:]), Stored: u64(data[32:]), Removed: u64(data[40:]), Queries: u64(data[48:]), Seed: u64(data[56:]),
	}}
	switch {
	case t.Version != Version1 && t.Version != Version2:
		return nil, fmt.Errorf("parse trace: version %d is not %d or %d", t.Version, Version1, Version2)
	case t.Workers == 0 || t.Workers > MaxWorkers:
		return nil, fmt.Errorf("parse trace: %d workers are not within 1..%d", t.Workers, MaxWorkers)
	case t.Records > uint64(len(data))/recordSize:
		return nil, fmt.Errorf("parse trace: %d records cannot be in %d bytes", t.Records, len(data))
	}
	return t, nil
}

// Open opens a file. On Unix it maps the file into memory, so that its bytes do not count as anonymous memory of the
// process.
func Open(path string) (*Trace, error) {
	data, unmap, err := mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	t, err := Parse(data)
	if err != nil {
		unmap()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	t.unmap = unmap
	return t, nil
}

// Close unmaps the file. After Close, do not use the Readers of the trace.
func (t *Trace) Close() error {
	if t.unmap == nil {
		return nil
	}
	return t.unmap()
}

// Reader returns a Reader at the first record.
func (t *Trace) Reader() *Reader { return &Reader{t: t, at: headerSize, left: t.Records} }

// Reader reads the records of a Trace in order. It is not safe for concurrent use.
type Reader struct {
	Record Record
	t      *Trace
	at     int
	left   uint64
	err    error

	depths                     []uint16
	locals, keys, engineHashes []uint64
}

// Err returns the error that ended the reading, or nil at the end of the file.
func (r *Reader) Err() error { return r.err }

// Next reads the next record into Record. At the end, and after an error, it returns false.
func (r *Reader) Next() bool {
	if r.err != nil {
		return false
	}
	if r.left == 0 {
		if r.at != len(r.t.data) {
			r.err = fmt.Errorf("read trace: %d bytes after the last record", len(r.t.data)-r.at)
		}
		return false
	}
	if err := r.next(); err != nil {
		r.err = fmt.Errorf("read trace at byte %d: %w", r.at, err)
		return false
	}
	r.left--
	return true
}

func (r *Reader) next() error {
	b := r.t.data[r.at:]
	if len(b) < recordSize {
		return io.ErrUnexpectedEOF
	}
	u32 := binary.LittleEndian.Uint32
	n, flags := int(u32(b[8:])), u32(b[12:])
	r.Record = Record{
		Kind: Kind(u32(b)), Worker: u32(b[4:]), HasParent: flags&1 != 0, Parent: binary.LittleEndian.Uint64(b[16:]), Units: 1,
	}
	if r.t.Version == Version2 && flags>>16 != 0 {
		r.Record.Units = int(flags >> 16)
	}
	rec := &r.Record
	size, err := r.payload(rec, n)
	if err != nil {
		return err
	}
	b = b[recordSize:]
	if size > len(b) {
		return io.ErrUnexpectedEOF
	}
	r.fill(rec, b[:size], n)
	r.at += recordSize + size
	return nil
}

// payload returns the size of a record's payload in bytes.
func (r *Reader) payload(rec *Record, n int) (int, error) {
	if rec.Worker >= r.t.Workers {
		return 0, fmt.Errorf("worker %d of %d", rec.Worker, r.t.Workers)
	}
	if rec.Units > MaxUnits {
		return 0, fmt.Errorf("%d units, limit %d", rec.Units, MaxUnits)
	}
	if n > len(r.t.data) {
		return 0, io.ErrUnexpectedEOF
	}
	switch rec.Kind {
	case Query, Probe:
		return depthBytes(r.t.Workers) + 16*n, nil
	case Stored:
		rec.Units = 1
		return 16 * n, nil
	case Removed:
		return 8 * n, nil
	}
	if r.t.Version == Version2 {
		switch rec.Kind {
		case StoredCut:
			return n * (8 + 16*rec.Units), nil
		case Forgotten:
			return 0, nil
		}
	}
	return 0, fmt.Errorf("unknown kind %d in version %d", rec.Kind, r.t.Version)
}

func (r *Reader) fill(rec *Record, b []byte, n int) {
	r.depths, r.locals, r.keys, r.engineHashes = r.depths[:0], r.locals[:0], r.keys[:0], r.engineHashes[:0]
	take := func() uint64 {
		v := binary.LittleEndian.Uint64(b)
		b = b[8:]
		return v
	}
	switch rec.Kind {
	case Query, Probe:
		for w := range int(r.t.Workers) {
			r.depths = append(r.depths, binary.LittleEndian.Uint16(b[2*w:]))
		}
		b = b[depthBytes(r.t.Workers):]
		for range n {
			r.locals = append(r.locals, take())
		}
		for range n {
			r.keys = append(r.keys, take())
		}
		rec.Depths = r.depths
	case Stored:
		for range n {
			r.locals = append(r.locals, take())
			r.keys = append(r.keys, take())
		}
		rec.EngineHashes = r.keys
	case StoredCut:
		for range n {
			r.engineHashes = append(r.engineHashes, take())
			for range rec.Units {
				r.locals = append(r.locals, take())
				r.keys = append(r.keys, take())
			}
		}
		rec.EngineHashes = r.engineHashes
	case Removed:
		for range n {
			r.engineHashes = append(r.engineHashes, take())
		}
		rec.EngineHashes = r.engineHashes
	}
	rec.Locals, rec.Keys = r.locals, r.keys
}
