package discovery

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// urls returns the URLs of the fleet.
func (w *watch) urls() (all []string) {
	for _, fw := range w.fleet.Snapshot().Workers() {
		all = append(all, fw.URL)
	}
	slices.Sort(all)
	return all
}

// A worker that is removed and added again at once is another worker, even if discovery sees only the end of both.
func TestAWorkerThatIsAddedAgainIsANewWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		testenv.Pass(time.Second)
		first := w.worker(t, "http://a")
		for range 2 { // first it is of the list, then of the admin API
			if _, err := w.Remove("http://a/", 0); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Add(Target{URL: "http://a"}); err != nil {
				t.Fatal(err)
			}
			testenv.Pass(time.Second)
			next := w.worker(t, "http://a")
			if next.ID == first.ID || !next.Ready || next.Incarnation <= first.Incarnation {
				t.Errorf("worker %d, incarnation %d, was %d, %d", next.ID, next.Incarnation, first.ID, first.Incarnation)
			}
			if first = next; w.Replace(nil) != nil {
				t.Fatal("the list cannot be emptied")
			}
			if _, err := w.Add(Target{URL: "http://a"}); err != nil && !errors.Is(err, ErrPresent) {
				t.Fatal(err)
			}
			testenv.Pass(time.Second)
			first = w.worker(t, "http://a")
		}
	})
}

func TestAWorkerLeavesWhenItsRequestsHaveEnded(t *testing.T) {
	for name, test := range map[string]struct {
		ends, leaves time.Duration
	}{
		"its requests end":        {10 * time.Second, 12 * time.Second},
		"the drain is over first": {time.Hour, time.Minute + time.Second},
		"it has no requests":      {0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchingOne(t)
				defer w.stop()
				testenv.Pass(time.Second)
				var underway fleet.Reservation
				if test.ends > 0 && !w.fleet.Reserve(&underway, w.worker(t, "http://a").Holders[0], fleet.Work{}, time.Now().UnixNano()) {
					t.Fatal("no request could be reserved")
				}
				if n, err := w.Remove("http://a", time.Minute); err != nil || (n > 0) != (test.ends > 0) {
					t.Fatalf("%d requests, %v", n, err)
				}
				if test.ends > 0 { // without requests it may have left already
					if fw := w.worker(t, "http://a"); !fw.Draining {
						t.Error("the worker still gets requests")
					}
					if _, err := w.Add(Target{URL: "http://a"}); !errors.Is(err, ErrPresent) {
						t.Errorf("added while it leaves: %v", err)
					}
				}
				end := min(test.ends, max(test.leaves-2*time.Second, 0))
				testenv.Pass(end)
				if test.ends > 0 {
					w.worker(t, "http://a") // it is still there
				}
				if end == test.ends {
					underway.Release(time.Now().UnixNano())
				}
				testenv.Pass(test.leaves - end)
				if got := w.urls(); len(got) != 0 {
					t.Errorf("%v after %v", got, test.leaves)
				}
				underway.Release(time.Now().UnixNano())
			})
		})
	}
}

// A worker that its DNS name or its file no longer lists ends its requests first; a worker of the list leaves at once.
func TestAWorkerThatASourceNoLongerListsEndsItsRequests(t *testing.T) {
	for _, from := range []Source{SourceList, SourceFile, SourceDNS} {
		for _, ends := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				n := newTransport()
				n.set("a", vllm032())
				w := watching(t, n)
				defer w.stop()
				list := func(targets ...Target) {
					apply, err := w.Prepare(from, targets)
					if err != nil {
						t.Fatal(err)
					}
					apply()
					testenv.Pass(time.Second)
				}
				list(Target{URL: "http://a"})
				var underway fleet.Reservation
				w.fleet.Reserve(&underway, w.worker(t, "http://a").Holders[0], fleet.Work{}, time.Now().UnixNano())
				list()
				if from == SourceList {
					if got := w.urls(); len(got) != 0 {
						t.Errorf("%s: %v", from, got)
					}
					underway.Release(time.Now().UnixNano())
					return
				}
				testenv.Pass(leaveListed - time.Minute)
				if now := w.worker(t, "http://a"); !now.Draining {
					t.Errorf("%s: the worker still gets requests", from)
				}
				if ends {
					underway.Release(time.Now().UnixNano())
					testenv.Pass(time.Second)
				} else {
					testenv.Pass(time.Minute)
				}
				if got := w.urls(); len(got) != 0 {
					t.Errorf("%s, its requests end %v: %v is left", from, ends, got)
				}
				underway.Release(time.Now().UnixNano())
			})
		}
	}
}

// An operator ends the drain of a worker that leaves: it stays, whichever source lists it.
func TestAWorkerThatLeavesMayStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTransport()
		n.set("a", vllm032())
		n.set("b", vllm032())
		w := watching(t, n, Target{URL: "http://a"})
		defer w.stop()
		if _, err := w.Add(Target{URL: "http://b", Events: None}); err != nil {
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		for _, url := range []string{"http://a", "http://b"} {
			var underway fleet.Reservation
			was := w.worker(t, url)
			w.fleet.Reserve(&underway, was.Holders[0], fleet.Work{}, time.Now().UnixNano())
			if _, err := w.Remove(url, time.Minute); err != nil {
				t.Fatal(err)
			}
			testenv.Pass(time.Second)
			if !w.Stay(url) || w.Stay(url) {
				t.Errorf("%s: it does not stay, or stays twice", url)
			}
			w.fleet.SetDraining(was.ID, false) // as PATCH does
			testenv.Pass(2 * time.Minute)
			if now := w.worker(t, url); now.ID != was.ID || !now.Ready {
				t.Errorf("%s: %+v", url, now)
			}
			underway.Release(time.Now().UnixNano())
		}
		if from, _, _ := w.SourceOf("http://b"); from != SourceAdmin || w.Target("http://b").Events != None {
			t.Errorf("the added worker is of %s: %+v", from, w.Target("http://b"))
		}
	})
}

// The file takes over a worker that an operator added: the settings of the file count, and the file removes it.
func TestTheListTakesOverAWorkerThatWasAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		n := w.transport
		n.set("b", vllm032())
		if _, err := w.Add(Target{URL: "http://b", Model: "other"}); err != nil {
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		was := w.worker(t, "http://b")
		list := []Target{{URL: "http://a"}, {URL: "http://b"}}
		if err := w.Replace(list[:1]); err != nil { // a reload without it
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		if w.worker(t, "http://b").ID != was.ID {
			t.Error("a reload removed the added worker")
		}
		if err := w.Replace(list); err != nil {
			t.Fatal(err)
		}
		if from, _, _ := w.SourceOf("http://b"); from != SourceList || w.Target("http://b").Model != "" {
			t.Errorf("listed, it is of %s: %+v", from, w.Target("http://b"))
		}
		testenv.Pass(time.Second)
		if w.worker(t, "http://b").ID != was.ID {
			t.Error("the worker was disturbed")
		}
		if err := w.Replace(list[:1]); err != nil {
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		if got := w.urls(); len(got) != 1 {
			t.Errorf("no longer listed: %v", got)
		}
	})
}

func TestTheAddedWorkersAreBounded(t *testing.T) {
	s, err := NewWatcher(fleet.New(fleet.Config{}), nil, Config{}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.roster.lists[SourceAdmin] = make([]Target, 0, maxAdded)
	for i := range maxAdded {
		s.roster.lists[SourceAdmin] = append(s.roster.lists[SourceAdmin], Target{URL: fmt.Sprintf("http://w%d", i)})
	}
	s.merge()
	if _, err := s.Add(Target{URL: "http://more"}); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
}
