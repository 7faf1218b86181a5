package trace

import (
	"bytes"
	"io"
	"testing"
)

// file is an in-memory io.WriteSeeker.
type file struct {
	b  []byte
	at int
}

func (f *file) Write(p []byte) (int, error) {
	f.b = append(f.b, make([]byte, max(f.at+len(p)-len(f.b), 0))...)
	f.at += copy(f.b[f.at:], p)
	return len(p), nil
}

func (f *file) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart {
		panic("bug: only from the start")
	}
	f.at = int(offset)
	return offset, nil
}

func samples() []Record {
	return []Record{
		{Kind: Stored, Worker: 1, Units: 1, Locals: []uint64{1, 2}, Keys: []uint64{1, 20}},
		{Kind: StoredCut, Worker: 2, Units: 2, HasParent: true, Parent: 20, Locals: []uint64{3, 4, 5, 6}, Keys: []uint64{30, 40, 50, 60}, EngineHashes: []uint64{40, 60}},
		{Kind: Query, Units: 1, Depths: []uint16{0, 2, 0}, Locals: []uint64{1, 2, 3}, Keys: []uint64{1, 20, 30}},
		{Kind: Removed, Worker: 2, Units: 2, EngineHashes: []uint64{40}},
		{Kind: Forgotten, Worker: 1, Units: 1},
		{Kind: Probe, Units: 1, Depths: []uint16{0, 0, 0}, Locals: []uint64{1}, Keys: []uint64{1}},
	}
}

func written(t testing.TB, version uint32, records []Record) []byte {
	t.Helper()
	var f file
	w := NewWriter(&f, Header{Version: version, Workers: 3, BlockSize: 16, Seed: 9})
	for i := range records {
		w.Write(&records[i])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return f.b
}

func TestTheReaderReturnsTheWrittenRecords(t *testing.T) {
	records := samples()
	data := written(t, Version2, records)
	tr, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Records != 6 || tr.Stored != 6 || tr.Removed != 2 || tr.Queries != 1 || tr.Seed != 9 {
		t.Errorf("header counts %+v", tr.Header)
	}
	var again []Record
	r := tr.Reader()
	for r.Next() {
		c := r.Record
		c.Depths, c.Locals = append([]uint16(nil), c.Depths...), append([]uint64(nil), c.Locals...)
		c.Keys, c.EngineHashes = append([]uint64(nil), c.Keys...), append([]uint64(nil), c.EngineHashes...)
		again = append(again, c)
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	if !bytes.Equal(written(t, Version2, again), data) {
		t.Errorf("written again it differs: %+v", again)
	}
}

func TestVersion1HasNoRecordsOfVersion2(t *testing.T) {
	tr, err := Parse(written(t, Version1, samples()))
	if err != nil {
		t.Fatal(err)
	}
	r := tr.Reader()
	for r.Next() {
	}
	if r.Err() == nil {
		t.Error("a version 1 file with records of version 2 was read")
	}
}

func TestDamagedFilesAreErrors(t *testing.T) {
	whole := written(t, Version2, samples())
	for name, data := range map[string][]byte{
		"empty":        nil,
		"magic":        append([]byte("KVTRACE2"), whole[8:]...),
		"short header": whole[:40],
		"cut record":   whole[:len(whole)-3],
		"trailing":     append(bytes.Clone(whole), 0),
	} {
		tr, err := Parse(data)
		if err != nil {
			continue
		}
		r := tr.Reader()
		for r.Next() {
		}
		if r.Err() == nil {
			t.Errorf("%s: read without an error", name)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(written(f, Version2, samples()))
	f.Add(written(f, Version1, samples()[:1]))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := Parse(data)
		if err != nil {
			return
		}
		r := tr.Reader()
		for r.Next() {
			if rec := &r.Record; rec.IsStore() && len(rec.Keys) != len(rec.EngineHashes)*rec.Units {
				t.Fatalf("%d keys under %d engine hashes of %d units", len(rec.Keys), len(rec.EngineHashes), rec.Units)
			}
		}
	})
}
