package indexer

import (
	"bytes"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// A list of workers from the service cannot take the router's memory: an empty worker takes two bytes there, and a
// hundred times as much here.
func TestAListOfTooManyWorkersOrRanksIsNotTaken(t *testing.T) {
	workers := func(n int) []byte { return bytes.Repeat([]byte{1<<3 | 2, 0}, n) }
	for name, c := range map[string]struct {
		message []byte
		taken   bool
	}{
		"most workers":     {workers(maxListed), true},
		"too many workers": {workers(maxListed + 1), false},
		"too many of all":  {bytes.Repeat(rankList(fleet.MaxRanks), maxListedRanks/fleet.MaxRanks+1), false},
		"most ranks":       {rankList(fleet.MaxRanks), true},
		"too many ranks":   {rankList(fleet.MaxRanks + 1), false},
	} {
		var l listing
		if err := l.decode(c.message); (err == nil) != c.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// rankList returns the encoded list of one worker with n ranks.
func rankList(n int) []byte {
	return (&listing{workers: []listedWorker{{ranks: make([]listedRank, n)}}}).appendTo(nil)
}
