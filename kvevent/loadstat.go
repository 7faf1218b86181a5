package kvevent

import (
	"errors"
	"fmt"
)

// LoadStat is a load report of an SGLang scheduler (srt/managers/scheduler_components/load_publisher.py).
type LoadStat struct {
	Running        int64 // requests that the scheduler computes now
	Waiting        int64 // requests in the scheduler's queue
	UsedTokens     int64 // tokens in the scheduler's KV cache
	CacheTokens    int64 // capacity of the scheduler's KV cache in tokens; 0: not known
	Rank           int64 // data-parallel rank of the sender; -1: not in the message
	Long           bool  // the message is in the long form, which has the fields below (SGLang since 0.5.23)
	UncachedTokens int64 // tokens of waiting prompts that are not cached and must be computed
	QueuedTokens   int64 // UsedTokens plus the tokens of all waiting requests
	MaxRunning     int64 // most requests that the scheduler computes together
	PrefillTokens  int64 // uncached prompt tokens computed since the engine's start
	PrefillMicros  int64 // microseconds spent computing PrefillTokens
}

const (
	tagLoadStat = "LoadStat"
	leastLoad   = 4 // fields of the short form; the name does not count
	longLoad    = 10
)

// ErrNoLoadStat is returned for a message that is no LoadStat.
var ErrNoLoadStat = errors.New("the message is no LoadStat")

// DecodeLoadStat reads a LoadStat in its short or long form. It ignores further fields, and keeps no part of the
// payload.
func DecodeLoadStat(payload []byte) (l LoadStat, err error) {
	c := cursor{p: payload}
	n, ok := c.array()
	if !ok || n == 0 {
		return l, ErrNoLoadStat
	}
	if tag, ok := c.text(); !ok || string(tag) != tagLoadStat {
		return l, ErrNoLoadStat
	}
	n--
	if n < leastLoad {
		return l, fmt.Errorf("decode LoadStat: %d fields, at least %d are needed", n, leastLoad)
	}
	l.Rank = -1
	fields := [...]*int64{&l.Running, &l.Waiting, &l.UsedTokens, &l.CacheTokens, &l.Rank, &l.UncachedTokens,
		&l.QueuedTokens, &l.MaxRunning, &l.PrefillTokens, &l.PrefillMicros}
	for i := range n {
		switch {
		case i >= len(fields):
			c.skip()
		case i == 4 && c.null():
		default:
			v, ok := c.integer64()
			switch {
			case !ok || v < 0:
				return LoadStat{}, fmt.Errorf("decode LoadStat: field %d is no count", i+1)
			case i == 4 && v > maxRank:
				return LoadStat{}, fmt.Errorf("decode LoadStat: data-parallel rank %d is beyond %d", v, maxRank)
			}
			*fields[i] = v
		}
	}
	switch {
	case c.broken != "":
		return LoadStat{}, fmt.Errorf("decode LoadStat: %s", c.broken)
	case c.left() > 0:
		return LoadStat{}, errors.New("decode LoadStat: bytes after it")
	}
	l.Long = n >= longLoad
	return l, nil
}
