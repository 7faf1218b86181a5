package kvevent

import (
	"errors"
	"strings"
	"testing"
)

func TestALoadStatIsReadInBothLengths(t *testing.T) {
	short := pack(list(tagLoadStat, 3, 2, 1000, 65536))
	l, err := DecodeLoadStat(short)
	if want := (LoadStat{Running: 3, Waiting: 2, UsedTokens: 1000, CacheTokens: 65536, Rank: -1}); err != nil ||
		l != want {
		t.Errorf("%+v, error %v, want %+v", l, err, want)
	}
	long := pack(list(tagLoadStat, 3, 2, 1000, 65536, 1, 700, 1900, 2048, 17000, 900000))
	want := LoadStat{Running: 3, Waiting: 2, UsedTokens: 1000, CacheTokens: 65536, Rank: 1, Long: true,
		UncachedTokens: 700, QueuedTokens: 1900,
		MaxRunning: 2048, PrefillTokens: 17000, PrefillMicros: 900000}
	if l, err = DecodeLoadStat(long); err != nil || l != want {
		t.Errorf("%+v, error %v, want %+v", l, err, want)
	}
}

func TestAnInvalidLoadStatIsRefusedWithAReason(t *testing.T) {
	many := []any{tagLoadStat}
	for i := range 4000 {
		many = append(many, i)
	}
	if l, err := DecodeLoadStat(pack(many)); err != nil || l.PrefillMicros != 9 {
		t.Errorf("4,000 fields: %+v, error %v", l, err)
	}
	for what, c := range map[string]struct {
		payload []byte
		want    string
	}{
		"three fields": {pack(list(tagLoadStat, 1, 2, 3)), "3 fields"},
		"a negative":   {pack(list(tagLoadStat, 1, -2, 3, 4)), "field 2 is no count"},
		"a text":       {pack(list(tagLoadStat, 1, 2, "x", 4)), "field 3 is no count"},
		"a list":       {pack(list(tagLoadStat, list(1), 2, 3, 4)), "field 1 is no count"},
		"too large": {append(pack(list(tagLoadStat, 1, 2, 3))[:1:1],
			"\xa8LoadStat\x01\x02\xcf\xff\xff\xff\xff\xff\xff\xff\xff"...), "fields"},
		"cut":              {pack(list(tagLoadStat, 1, 2, 3, 4, 5, "abc"))[:18], "no count"},
		"a rank too large": {pack(list(tagLoadStat, 1, 2, 3, 4, maxRank+1)), "rank 65536 is beyond 65535"},
		"bytes behind it":  {append(pack(list(tagLoadStat, 1, 2, 3, 4)), 1), "bytes after"},
	} {
		if _, err := DecodeLoadStat(c.payload); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", what, err, c.want)
		}
	}
	for _, payload := range [][]byte{nil, {0x90}, pack(list("Other", 1)), pack(list(1.5, list(), 0)),
		{0xdd, 0xff, 0xff, 0xff, 0xff}} {
		if _, err := DecodeLoadStat(payload); !errors.Is(err, ErrNoLoadStat) {
			t.Errorf("% x: %v", payload, err)
		}
	}
}

func FuzzDecodeLoadStat(f *testing.F) {
	f.Add(pack(list(tagLoadStat, 3, 2, 1000, 65536)))
	f.Add(pack(list(tagLoadStat, 3, 2, 1000, 65536, 1, 700, 1900, 2048, 17000, 900000)))
	f.Add(pack(list(tagLoadStat, 3, 2, 1000, 65536, nil, list(1, list()), "x")))
	f.Fuzz(func(t *testing.T, payload []byte) {
		l, err := DecodeLoadStat(payload)
		if err == nil && (l.Running < 0 || l.Waiting < 0 || l.PrefillMicros < 0 || l.Rank < -1 || l.Rank > maxRank) {
			t.Errorf("%+v", l)
		}
	})
}
