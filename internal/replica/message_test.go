package replica

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

func samplePlacement() warmpath.Placement {
	return warmpath.Placement{
		ID: 1 << 60, URL: "http://w:8000", Rank: 3, Model: "sql", Base: "llama", LoRA: "sql", Policy: "marginal",
		Session: policy.Session{Key: "talk", Source: "x-session-id"}, Tenant: "team", Class: 99, Leg: fleet.LegDecode, BlockSize: 16,
		Keys: []block.Key{1, 1 << 63}, AheadKeys: []block.Key{7}, Ahead: 1, Text: []byte("once upon"), Tokens: []uint32{5, 1 << 31}, TextBytes: 900,
		FromText: true, TokensKnown: true, Trust: fleet.TrustExact, PromptTokens: 40, UncachedTokens: 8, ContextBlocks: 3, MostTokens: 100, Choices: 2,
		Whole: true, Guess: true, Levels: []fleet.ServiceLevel{{FirstToken: time.Second, PerToken: time.Millisecond}}, Waited: time.Minute, PrefillCompleted: true,
	}
}

func TestAPlacementIsReadAsItWasWritten(t *testing.T) {
	for name, p := range map[string]warmpath.Placement{"full": samplePlacement(), "empty": {ID: 1}} {
		data, _ := appendPlacement(nil, &p, wholePrompt)
		c := content{data: data, names: map[string]string{}}
		got := samplePlacement() // memory that is used again
		c.placement(&got)
		if diff := cmp.Diff(p, got, cmpopts.EquateEmpty()); diff != "" || c.err != nil || len(c.data) > 0 {
			t.Errorf("%s: %v, %d bytes left\n%s", name, c.err, len(c.data), diff)
		}
		for n := range data {
			c := content{data: data[:n]}
			if c.placement(&got); !errors.Is(c.err, errCut) {
				t.Errorf("%s: %d of %d bytes are read: %v", name, n, len(data), c.err)
			}
		}
	}
}

func TestALongPlacementIsToldByItsBeginning(t *testing.T) {
	p := samplePlacement()
	p.Keys, p.AheadKeys = make([]block.Key, warmpath.MaxPlacementKeys+5), make([]block.Key, warmpath.MaxPlacementKeys+5)
	p.Text, p.Tokens = make([]byte, warmpath.MaxPlacementText+5), make([]uint32, warmpath.MaxPlacementTokens+5)
	p.Session.Key, p.Tenant = strings.Repeat("s", mostString), strings.Repeat("t", mostString+1)
	record := appendRecord(nil, recordAdd, func(to []byte) []byte {
		to, _ = appendPlacement(to, &p, wholePrompt)
		return to
	})
	if len(record) > maxRecord {
		t.Errorf("the record has %d bytes, maxRecord is %d", len(record), maxRecord)
	}
	kind, body, rest, err := nextRecord(record)
	c := content{data: body}
	var got warmpath.Placement
	c.placement(&got)
	if err != nil || c.err != nil || kind != recordAdd || len(rest) > 0 || len(got.Keys) != warmpath.MaxPlacementKeys || len(got.Text) != warmpath.MaxPlacementText || len(got.Tokens) != warmpath.MaxPlacementTokens ||
		got.Session.Key != p.Session.Key || got.Tenant != "" {
		t.Errorf("%v %v: %d keys, %d bytes of text, %d tokens, tenant %.10q", err, c.err, len(got.Keys), len(got.Text), len(got.Tokens), got.Tenant)
	}
}

func TestOtherRecordsAreReadAsTheyWereWritten(t *testing.T) {
	h := heartbeat{"a", "b", "c", "d", 5, true, true}
	k := echo{5, 77, 8}
	a := ask{9, true}
	s := statePart{8, 7, 1, 3}
	u := spent{"t", 5, -6, 7}
	e := ending{6, warmpath.Ending{Unsent: true, Outcome: fleet.OutcomeFailed, OutputTokens: 44}}
	if c := (content{data: h.append(nil)}); c.heartbeat() != h || c.err != nil {
		t.Error("heartbeat")
	}
	if c := (content{data: k.append(nil)}); c.echo() != k || c.err != nil || len(c.data) > 0 {
		t.Error("echo")
	}
	if c := (content{data: a.append(nil)}); c.ask() != a || c.err != nil {
		t.Error("ask")
	}
	if c := (content{data: s.append(nil)}); c.statePart() != s || c.err != nil {
		t.Error("state")
	}
	if c := (content{data: u.append(nil)}); c.spent() != u || c.err != nil {
		t.Error("spent")
	}
	if _, body, _, err := nextRecord(e.append(nil)); err != nil || len(body) > endingBytes {
		t.Error(err)
	} else if c := (content{data: body}); c.ending() != e || c.err != nil {
		t.Error("ending")
	}
}

func TestPacketsAreSignedAsAWhole(t *testing.T) {
	s := newSigner("0123456789abcdef", "g")
	h := header{from: 1, started: 2, to: 3, number: 4, digest: 5, digested: true}
	packet := s.sign(append(h.begin(nil), 1, 2, 3))
	got, records, err := s.open(packet)
	if err != nil || got != h || !slices.Equal(records, []byte{1, 2, 3}) {
		t.Fatalf("%v %+v %v", err, got, records)
	}
	for i := range packet {
		changed := slices.Clone(packet)
		changed[i] ^= 1
		if _, _, err := s.open(changed); err == nil {
			t.Errorf("byte %d is not signed", i)
		}
	}
}

func FuzzPacketsOfOthers(f *testing.F) {
	p := samplePlacement()
	h := header{from: 1, number: 1}
	out := newOutbox()
	out.add(&scratch{placement: p}, process{}, time.Now())
	records, _ := out.take(nil)
	f.Add(append(h.begin(nil), records...))
	e := ending{p.ID, warmpath.Ending{}}
	part := statePart{parts: 1}
	f.Add(append(h.begin(nil), e.append(appendID(nil, recordPrefilled, p.ID))...))
	f.Add(appendRecord(h.begin(nil), recordState, part.append))
	f.Add(append(h.begin(nil), recordAdd, 0xff, 0xff, 0xff, 0xff, 0x0f))
	f.Fuzz(func(t *testing.T, packet []byte) {
		b := newBus(1)
		m := &member{fleet: fleet.New(fleet.Config{})}
		router, err := warmpath.New(warmpath.Options{Fleet: m.fleet})
		if err != nil {
			t.Fatal(err)
		}
		m.worker(0)
		s := New(DefaultConfig(), Parts{NewPeer: router.NewPeer, Fleet: m.fleet, Log: discard})
		s.link = &busLink{bus: b, s: s}
		r := &s.receiver
		now := time.Now()
		for range 2 { // the second one is a repetition
			r.packet(packet, now)
		}
		s.dropAll()
		for _, l := range m.loads() {
			if l != (fleet.Load{}) {
				t.Errorf("load is left: %+v", l)
			}
		}
	})
}

func BenchmarkPlaced(b *testing.B) {
	for name, keys := range map[string]int{"64 blocks": 64, "512 blocks": 512, "8192 blocks": 8192} {
		b.Run(name, func(b *testing.B) {
			out := newOutbox()
			var s scratch
			p := samplePlacement()
			p.Keys, p.AheadKeys, p.Text, p.Tokens = make([]block.Key, keys), nil, nil, nil
			b.ReportAllocs()
			var spare []byte
			for b.Loop() {
				p.ID++
				s.placement = p
				out.add(&s, process{}, time.Now())
				out.prefilled(p.ID)
				out.freed(p.ID, warmpath.Ending{}, time.Time{})
				if len(out.pending) > maxPending/2 {
					spare, _ = out.take(spare)
				}
			}
			out.take(nil)
			s.placement = p
			out.add(&s, process{}, time.Now())
			out.prefilled(p.ID)
			out.freed(p.ID, warmpath.Ending{}, time.Time{})
			records, _ := out.take(nil)
			b.ReportMetric(float64(len(records)), "bytes/request")
		})
	}
}

// A request at a peer costs its packet, its signature, and the work of three records.
func BenchmarkReceived(b *testing.B) {
	for name, keys := range map[string]int{"64 blocks": 64, "512 blocks": 512} {
		for _, key := range []string{"", strings.Repeat("k", 32)} {
			b.Run(name+map[bool]string{true: " signed"}[key != ""], func(b *testing.B) {
				m := &member{fleet: fleet.New(fleet.Config{})}
				router, err := warmpath.New(warmpath.Options{Fleet: m.fleet})
				if err != nil {
					b.Fatal(err)
				}
				m.worker(0)
				cfg := DefaultConfig()
				cfg.Key = key
				s := New(cfg, Parts{NewPeer: router.NewPeer, Fleet: m.fleet, Log: discard})
				s.link = &busLink{bus: newBus(1), s: s}
				sign := newSigner(key, cfg.Group)
				r := &s.receiver
				out := newOutbox()
				var sc scratch
				p := samplePlacement()
				p.URL, p.Model, p.Base, p.LoRA, p.Rank, p.Leg, p.FromText = "http://w0", "llama", "llama", "", 0, fleet.LegWhole, false
				p.Keys, p.AheadKeys, p.Text, p.Tokens = make([]block.Key, keys), nil, nil, nil
				number := uint64(0)
				var packet, spare []byte
				now := time.Now()
				b.ReportAllocs()
				for b.Loop() {
					p.ID++
					number++
					for i := range p.Keys {
						p.Keys[i] = block.Key(p.ID*1000 + uint64(i))
					}
					sc.placement = p
					out.add(&sc, process{}, time.Now())
					out.prefilled(p.ID)
					out.freed(p.ID, warmpath.Ending{}, now)
					records, digest := out.take(spare)
					spare = records
					h := header{from: 9, number: number, digest: digest, digested: true}
					packet = sign.sign(append(h.begin(packet[:0]), records...))
					r.packet(packet, now)
				}
				if s.counts.dropped[0].Load() > 0 {
					b.Fatal("packets were dropped")
				}
			})
		}
	}
}
