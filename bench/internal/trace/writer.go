package trace

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Writer writes a file. It counts the records and blocks for the header; the caller sets the other fields of the
// header. Close returns the first error of all methods. A Writer is not safe for concurrent use.
type Writer struct {
	header Header
	to     io.WriteSeeker
	buf    *bufio.Writer
	row    []byte
	err    error
}

// NewWriter begins a file. The position in to must be 0.
func NewWriter(to io.WriteSeeker, h Header) *Writer {
	h.Records, h.Stored, h.Removed, h.Queries = 0, 0, 0, 0
	w := &Writer{header: h, to: to, buf: bufio.NewWriterSize(to, 1<<20)}
	w.flush(w.header.append(nil))
	return w
}

func (h *Header) append(b []byte) []byte {
	b = append(b, magic...)
	for _, v := range []uint32{h.Version, h.Workers, h.BlockSize, 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, v := range []uint64{h.Records, h.Stored, h.Removed, h.Queries, h.Seed} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// Header returns the header as it would be written now.
func (w *Writer) Header() Header { return w.header }

// Write appends a record. A Stored record needs Locals and Keys, a StoredCut record also EngineHashes. A Removed record
// needs only EngineHashes, and a question needs Depths, Locals and Keys.
func (w *Writer) Write(r *Record) {
	units := max(r.Units, 1)
	n, flags := len(r.Keys), uint32(0)
	if r.HasParent {
		flags = 1
	}
	switch r.Kind {
	case StoredCut, Removed:
		n = len(r.EngineHashes)
		if units > 1 || r.Kind == StoredCut {
			flags |= uint32(units) << 16
		}
	}
	b := binary.LittleEndian.AppendUint32(w.row[:0], uint32(r.Kind))
	b = binary.LittleEndian.AppendUint32(b, r.Worker)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint64(b, r.Parent)
	u64 := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	switch r.Kind {
	case Query, Probe:
		for _, d := range r.Depths {
			b = binary.LittleEndian.AppendUint16(b, d)
		}
		b = append(b, make([]byte, depthBytes(w.header.Workers)-2*len(r.Depths))...)
		for _, v := range r.Locals {
			u64(v)
		}
		for _, v := range r.Keys {
			u64(v)
		}
		if r.Kind == Query {
			w.header.Queries++
		}
	case Stored, StoredCut:
		for i := range r.Keys {
			if r.Kind == StoredCut && i%units == 0 {
				u64(r.EngineHashes[i/units])
			}
			u64(r.Locals[i])
			u64(r.Keys[i])
		}
		w.header.Stored += uint64(len(r.Keys))
	case Removed:
		for _, v := range r.EngineHashes {
			u64(v)
		}
		w.header.Removed += uint64(n * units)
	}
	w.header.Records++
	w.row = b
	w.flush(b)
}

func (w *Writer) flush(b []byte) {
	if w.err == nil {
		_, w.err = w.buf.Write(b)
	}
}

// Close writes the final header and returns the first error of all writing. It does not close the file.
func (w *Writer) Close() error {
	if w.err == nil {
		w.err = w.buf.Flush()
	}
	if w.err == nil {
		_, w.err = w.to.Seek(0, io.SeekStart)
	}
	if w.err == nil {
		_, w.err = w.to.Write(w.header.append(nil))
	}
	if w.err != nil {
		return fmt.Errorf("write trace: %w", w.err)
	}
	return nil
}
