package indexer

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// sizedList is a list of one worker of the model m.
func sizedList(blocks int) *listing {
	return &listing{workers: []listedWorker{{worker: "http://a", model: "m", group: defaultGroup, blockSize: blocks, engineBlockSize: blocks, algorithm: block.XXH3.String(),
		ranks: []listedRank{{rank: 0, trust: fleet.TrustExact}}}}}
}

// A service whose list says another block size each time gives the router a reason to ask again after each answer.
func TestAServiceThatChangesItsSizeIsAskedWithPauses(t *testing.T) {
	var polls atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/workers" {
			_, _ = w.Write(sizedList(16 << (polls.Add(1) % 2)).appendTo(nil))
		}
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	start := time.Now()
	a := newAsker(t, s.URL, nil)
	a.put("http://a", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
	testenv.Until(t, "eight polls", func() bool { return polls.Load() >= 8 })
	made := polls.Load()
	if most := 1 + int64(time.Since(start)/(pollEvery/10)); made > most {
		t.Errorf("%d polls in %v, want at most %d", made, time.Since(start), most)
	}
}

// A change of the size is logged, a size that changes to and fro is warned of once, and a change after a steady time is
// logged again. Of a list with two sizes of a model, the first counts.
func TestASizeThatChangesToAndFroIsWarnedOfOnce(t *testing.T) {
	log := new(testenv.Buffer)
	a := newAsker(t, "http://127.0.0.1:1", nil, log)
	a.put("http://a", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
	a.stop() // only the test applies lists
	const says, warns = "the index service has blocks of another size", "changes to and fro"
	check := func(when string, infos, warnings int) {
		t.Helper()
		if i, w := strings.Count(log.String(), says), strings.Count(log.String(), warns); i != infos || w != warnings {
			t.Errorf("%s: %d lines and %d warnings, want %d and %d:\n%s", when, i, w, infos, warnings, log)
		}
	}
	for i := range 100 {
		size := 32 >> (i % 2)
		a.client.apply(a.fleet.Snapshot(), sizedList(size))
		if _, is, _ := a.router.Keying("m"); is != size {
			t.Fatalf("the router has blocks of %d tokens, the service of %d", is, size)
		}
	}
	check("to and fro", 2, 1)
	steady := a.client.sizes["m"]
	steady.last = time.Now().Add(-sizeSteady)
	a.client.sizes["m"] = steady
	a.client.apply(a.fleet.Snapshot(), sizedList(16))
	a.client.apply(a.fleet.Snapshot(), sizedList(32))
	check("after a steady time", 3, 1)
	both := sizedList(64)
	both.workers = append(both.workers, sizedList(128).workers...)
	a.client.apply(a.fleet.Snapshot(), both)
	if _, is, _ := a.router.Keying("m"); is != 64 {
		t.Errorf("the router has blocks of %d tokens, want those of the first worker", is)
	}
}
