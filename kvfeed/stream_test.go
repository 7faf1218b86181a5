package kvfeed

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestEventsBecomeMatches(t *testing.T) {
	for _, version := range []string{"vllm-0.9.1", "vllm-0.14.0", "vllm-0.20.0", "vllm-0.32.0", "vllm-0.32.0+bytes", "trtllm-1.3.0"} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(fleet.EngineVLLM, 16))
			s.Message(0, wire(t, version, batch(stored(1, 0, 64, 16))))
			s.Message(1, wire(t, version, batch(stored(1, 64, 32, 16), stored(2, 0, 32, 16))))
			if got := r.match(prompt(1, 200)); got != 96 {
				t.Errorf("match %d, want 96", got)
			}
			if got := r.match(prompt(1, 64)); got != 48 {
				t.Errorf("a wholly cached prompt matches %d tokens, want 48: an engine always computes the last token", got)
			}
			s.Message(2, wire(t, version, batch(removed(1, 3, 3))))
			if got := r.match(prompt(1, 200)); got != 48 {
				t.Errorf("match after removals %d, want 48", got)
			}
			s.Message(3, wire(t, version, batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
			if a, b := r.match(prompt(1, 200)), r.match(prompt(2, 200)); a != 0 || b != 0 {
				t.Errorf("matches after a reset %d and %d", a, b)
			}
			r.trust(s.holder, fleet.TrustExact, "complete")
			if st := s.snapshot(); st.Applied+st.Unapplied != 5 || st.Stored != 3 || st.Removed != 1 || st.Cleared != 1 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

func TestRequestsThatAreKeptApartDoNotMatch(t *testing.T) {
	r := newRig(t, Config{})
	f := facts(fleet.EngineVLLM, 16)
	f.Models = append(f.Models, fleet.Model{ID: "sql", Parent: "m"})
	s := r.stream(f)
	plain, salted, adapted := stored(1, 0, 64, 16), stored(1, 0, 48, 16), stored(1, 0, 32, 16)
	salted.Hashes, adapted.Hashes = hashes(2, 0, 3), hashes(3, 0, 2)
	salted.Salt, adapted.LoRA = "tenant", "sql"
	s.Message(0, wire(t, "vllm-0.32.0", batch(plain, salted, adapted)))
	for _, test := range []struct {
		name   string
		change func(*warmpath.Request)
		want   int
	}{
		{"plain", func(*warmpath.Request) {}, 64},
		{"salted", func(q *warmpath.Request) { q.Salt = "tenant" }, 48},
		{"other salt", func(q *warmpath.Request) { q.Salt = "other" }, 0},
		{"adapter", func(q *warmpath.Request) { q.Model = "sql" }, 32},
		{"salted adapter", func(q *warmpath.Request) { q.Model, q.Salt = "sql", "tenant" }, 0},
		{"extra key", func(q *warmpath.Request) { q.Extra = "x" }, 0},
	} {
		if got := r.match(prompt(1, 200), test.change); got != test.want {
			t.Errorf("%s: match %d, want %d", test.name, got, test.want)
		}
	}
	r.trust(s.holder, fleet.TrustExact, "")
}

func TestSGLangExtraKeyIsNeverOverclaimed(t *testing.T) {
	for _, version := range []string{"sglang-0.5.9", "sglang-0.5.18", "sglang-0.5.23"} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(fleet.EngineSGLang, 16))
			extra := func(q *warmpath.Request) { q.Extra = "tenant" }
			s.Message(0, wire(t, version, batch(stored(1, 0, 64, 16))))
			if got := r.match(prompt(1, 200)); got != 64 {
				t.Errorf("a request without extra_key matches %d tokens, want 64", got)
			}
			if got := r.match(prompt(1, 200), extra); got != 0 {
				t.Errorf("a request with an extra_key matches %d tokens of one without", got)
			}
			r.trust(s.holder, fleet.TrustExact, "")

			// The first request with an extra_key is sent. Its blocks have the same hashes as blocks of requests
			// without extra_key.
			r.feed.Scoped(s.url, s.rank, "", "tenant")
			s.Message(1, wire(t, version, batch(stored(1, 0, 64, 16), stored(1, 64, 64, 16), stored(2, 0, 64, 16))))
			if got := r.match(prompt(1, 200)); got != 64 {
				t.Errorf("a request without extra_key matches %d tokens: earlier blocks stay valid, later ones may belong to the other request", got)
			}
			if a, b := r.match(prompt(2, 200)), r.match(prompt(2, 200), extra); a != 0 || b != 0 {
				t.Errorf("an ambiguous chain matches %d and %d", a, b)
			}
			r.trust(s.holder, fleet.TrustApproximate, "extra_key")
			if st := s.snapshot(); st.Unapplied != 3 {
				t.Errorf("%d events not applied, want 3", st.Unapplied)
			}
			// The removal may mean the copy with extra_key or the copy without it. So the index must not keep the copy
			// without extra_key.
			s.Message(2, wire(t, version, batch(removed(1, 0, 4))))
			if got := r.match(prompt(1, 200)); got != 0 {
				t.Errorf("match after the removal %d", got)
			}
		})
	}
}

func TestHiddenKeysAreAmbiguousOnlyWhereTheHashLacksThem(t *testing.T) {
	adapters := func(e fleet.Engine) fleet.Facts {
		f := facts(e, 16)
		f.Models = append(f.Models, fleet.Model{ID: "sql", Parent: "m"})
		return f
	}
	salted := func(r *rig, s *stream) { r.feed.Scoped(s.url, s.rank, "tenant", "") }
	for _, test := range []struct {
		name    string
		facts   fleet.Facts
		config  Config
		before  func(*rig, *stream)
		version string
		want    int
		trust   fleet.Trust
	}{
		{"SGLang without adapters", facts(fleet.EngineSGLang, 16), Config{}, nil, "sglang-0.5.9", 64, fleet.TrustExact},
		{"SGLang's arrays name no adapter", adapters(fleet.EngineSGLang), Config{}, nil, "sglang-0.5.9", 0, fleet.TrustApproximate},
		{"assumed from the start", facts(fleet.EngineSGLang, 16), Config{AssumeExtraKey: true}, nil, "sglang-0.5.23", 0, fleet.TrustApproximate},
		{"older SGLang and salts", facts(fleet.EngineSGLang, 16), Config{}, salted, "sglang-0.5.9", 0, fleet.TrustApproximate},
		{"newer SGLang tells salts", facts(fleet.EngineSGLang, 16), Config{}, salted, "sglang-0.5.23", 64, fleet.TrustExact},
		{"older vLLM does not root a chain that may be salted", facts(fleet.EngineVLLM, 16), Config{}, salted, "vllm-0.14.0", 0, fleet.TrustExact},
		{"newer vLLM tells salts", facts(fleet.EngineVLLM, 16), Config{}, salted, "vllm-0.32.0", 64, fleet.TrustExact},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, test.config)
			s := r.stream(test.facts)
			if test.before != nil {
				test.before(r, s)
			}
			s.Message(0, wire(t, test.version, batch(stored(1, 0, 64, 16))))
			if got := r.match(prompt(1, 200)); got != test.want {
				t.Errorf("match %d, want %d", got, test.want)
			}
			r.trust(s.holder, test.trust, "")
		})
	}
}

func TestLossesAreForgottenAndARestartOrAResetCuresThem(t *testing.T) {
	unreadable := []byte{0x93, 0xc1}
	for _, test := range []struct {
		name   string
		happen func(*stream)
		why    string
	}{
		{"lost messages", func(s *stream) { s.Lost(1, 4) }, "messages 1 to 3 are lost"},
		{"history missing", func(s *stream) { s.Lost(0, 7) }, "history before message 7 is missing"},
		{"disconnect without replay", func(s *stream) { s.Lost(1, 1) }, "there is no replay"},
		{"unreadable message", func(s *stream) { s.Message(1, unreadable); s.Complete() }, "message 1 could not be read"},
		{"unreadable removal", func(s *stream) {
			s.Message(1, []byte("\x93\x01\x91\x92\xacBlockRemoved\x91\xc0\x00"))
			s.Complete()
		}, "takes blocks away"},
	} {
		for _, cure := range []string{"restart", "reset"} {
			t.Run(test.name+", "+cure, func(t *testing.T) {
				r := newRig(t, Config{})
				s := r.stream(facts(fleet.EngineVLLM, 16))
				s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
				test.happen(s)
				if got := r.match(prompt(1, 200)); got != 0 {
					t.Errorf("match %d after the loss", got)
				}
				r.trust(s.holder, fleet.TrustDegraded, test.why)
				// The stream still learns from later events.
				s.Message(9, wire(t, "vllm-0.32.0", batch(stored(2, 0, 64, 16), stored(3, 64, 64, 16))))
				if a, b := r.match(prompt(2, 200)), r.match(prompt(3, 200)); a != 64 || b != 0 {
					t.Errorf("matches %d and %d, want 64 and 0: the beginning of the second prompt is not known", a, b)
				}
				r.trust(s.holder, fleet.TrustDegraded, test.why)
				if cure == "restart" {
					s.Restarted("its numbers began again")
					r.trust(s.holder, fleet.TrustDegraded, "history is being read")
					s.Complete()
				} else {
					s.Message(10, wire(t, "vllm-0.32.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
				}
				if got := r.match(prompt(2, 200)); got != 0 {
					t.Errorf("match %d after the %s", got, cure)
				}
				r.trust(s.holder, fleet.TrustExact, "")
			})
		}
	}
}

func TestOtherMessagesChangeNothing(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineSGLang, 16))
	s.Message(0, wire(t, "sglang-0.5.23", batch(stored(1, 0, 64, 16))))
	s.Message(1, []byte("\x9b\xa8LoadStat\x00\x00\x00\xce\x00\x01\x00\x00\x00\x00\x00\xcd\x08\x00\x0b\xcd\x42\x38"))
	s.Message(2, []byte("\x93\x01\x92\x91\xa9NewThings\x91\xa9NewThings\x00"))
	if got := r.match(prompt(1, 200)); got != 64 {
		t.Errorf("match %d, want 64", got)
	}
	r.trust(s.holder, fleet.TrustExact, "")
	st := s.snapshot()
	if st.Foreign != 1 || st.Skipped != 2 || len(st.SkippedTags) != 1 || st.SkippedTags[0] != (Tag{"NewThings", 2}) {
		t.Errorf("stats %+v", st)
	}
	if !strings.Contains(r.log.String(), "KV events were skipped") {
		t.Errorf("log:\n%s", r.log)
	}
	reported := fleet.Reported{QueueReported: true, Computed: 0xb, Busy: 0x4238 * time.Microsecond}
	if got := r.fleet.Snapshot().LoadAt(s.holder, time.Now().UnixNano()).Reported; got.At == 0 {
		t.Error("the fleet does not get the reported load")
	} else if got.At = 0; got != reported {
		t.Errorf("the fleet knows %+v, want %+v", got, reported)
	}
	s.Message(3, []byte("\xdc\x0f\xa0\xa8LoadStat"+strings.Repeat("\x01", 3999)))
	if got := r.match(prompt(1, 200)); got != 64 || r.fleet.Snapshot().LoadAt(s.holder, time.Now().UnixNano()).Reported.Running != 1 {
		t.Errorf("4,000 fields: match %d, want 64", got)
	}
	s.Message(4, []byte("\x93\xa8LoadStat\x01\x02"))
	if !strings.Contains(r.log.String(), "2 fields, at least 4") {
		t.Errorf("log:\n%s", r.log)
	}
}

func TestAnotherRanksLoadIsNotReported(t *testing.T) {
	report := func(running, rank byte) []byte {
		return []byte{0x96, 0xa8, 'L', 'o', 'a', 'd', 'S', 't', 'a', 't', running, 0, 0, 0, rank}
	}
	const noRank = 0xc0 // nil in MessagePack
	for _, c := range []struct {
		ranks int
		rank  byte
		used  bool
	}{{2, 0, true}, {2, 1, false}, {2, 7, false}, {2, noRank, true}, {1, 0, true}, {1, 7, true}} {
		r := newRig(t, Config{})
		f := facts(fleet.EngineSGLang, 16)
		f.Ranks = c.ranks
		s := r.stream(f)
		s.Message(0, report(3, c.rank))
		reported := r.fleet.Snapshot().LoadAt(s.holder, time.Now().UnixNano()).Reported
		if used := reported.Running == 3; used != c.used || used == (s.snapshot().Misdirected == 1) {
			t.Errorf("rank 0 of %d, a report of rank %d: %+v, %d misdirected", c.ranks, c.rank, reported, s.snapshot().Misdirected)
		}
	}
}

func TestAnotherRanksEventsAreNotCredited(t *testing.T) {
	r := newRig(t, Config{})
	f := facts(fleet.EngineVLLM, 16)
	f.Ranks = 2
	s := r.stream(f)
	b := batch(stored(1, 0, 64, 16))
	b.Rank = 1
	s.Message(0, wire(t, "vllm-0.32.0", b))
	if got := r.match(prompt(1, 200)); got != 0 {
		t.Errorf("match %d", got)
	}
	r.trust(s.holder, fleet.TrustApproximate, "carries events of data-parallel rank 1, this is rank 0")

	if st := s.snapshot(); st.Misdirected != 1 {
		t.Errorf("%d messages of another rank are counted, want 1", st.Misdirected)
	}

	// The messages of a worker with one rank may contain any rank number.
	r = newRig(t, Config{})
	s = r.stream(facts(fleet.EngineVLLM, 16))
	s.Message(0, wire(t, "vllm-0.32.0", b))
	if got := r.match(prompt(1, 200)); got != 64 {
		t.Errorf("match %d, want 64", got)
	}

	// All messages of this worker must contain the same rank number.
	b.Rank = 2
	s.Message(1, wire(t, "vllm-0.32.0", b))
	if got := r.match(prompt(1, 200)); got != 0 {
		t.Errorf("match %d after a message of another rank", got)
	}
	r.trust(s.holder, fleet.TrustApproximate, "carries events of data-parallel rank 2, this is rank 1")
	s.Restarted("its numbers began again")
	s.Complete()
	s.Message(0, wire(t, "vllm-0.32.0", b))
	if got := r.match(prompt(1, 200)); got != 64 {
		t.Errorf("match %d of another process, want 64", got)
	}
	r.trust(s.holder, fleet.TrustExact, "")
}

func TestEventsCorrectTheBlockSize(t *testing.T) {
	for _, test := range []struct {
		probed, announced int
		warning           string
	}{
		{64, 16, "events carry 16-token blocks, the probe said 64: using 16"},
		{16, 64, "events carry 64-token blocks, the probe said 16: using 64"},
		{0, 32, ""},
		{16, 16, ""},
	} {
		r := newRig(t, Config{})
		s := r.stream(facts(fleet.EngineVLLM, test.probed))
		s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 128, test.announced))))
		if got := r.fleet.Snapshot().Worker(s.holder).Facts.BlockSize; got != test.announced {
			t.Errorf("block size %d, want %d", got, test.announced)
		}
		if log := r.log.String(); strings.Contains(log, "token blocks") != (test.warning != "") || !strings.Contains(log, test.warning) {
			t.Errorf("log, want %q:\n%s", test.warning, log)
		}
		if got := r.match(prompt(1, 200)); got != 128 {
			t.Errorf("match %d, want 128", got)
		}
		if s.renew.Load() || s.generation.Load() != r.router.Generation(s.holder) {
			t.Error("the history is requested again although no message is missing")
		}
	}
}

func TestEventsDoNotCorrectAStaticBlockSize(t *testing.T) {
	for _, test := range []struct {
		static, announced, match int
		warning                  string
	}{
		{32, 16, 96, "events carry 16-token blocks, routing.block_sizes says 32: using 32"},
		{16, 16, 112, ""},
	} {
		r := newRigWithFleet(t, Config{}, kvindex.Config{}, fleet.New(fleet.Config{BlockSizes: map[string]int{"m": test.static}}))
		s := r.stream(facts(fleet.EngineVLLM, 0))
		s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 112, test.announced))))
		if got := r.fleet.Snapshot().Worker(s.holder).Facts.BlockSize; got != test.static {
			t.Errorf("block size %d, want %d", got, test.static)
		}
		if log := r.log.String(); strings.Contains(log, "token blocks") != (test.warning != "") || !strings.Contains(log, test.warning) {
			t.Errorf("log, want %q:\n%s", test.warning, log)
		}
		if got := r.match(prompt(1, 200)); got != test.match {
			t.Errorf("match %d, want %d", got, test.match)
		}
	}
}

func TestAReplacedIndexNeedsTheHistory(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 64))
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 128, 64))))
	r.fleet.Put("http://127.0.0.1:9999", facts(fleet.EngineVLLM, 16))
	s.Message(1, wire(t, "vllm-0.32.0", batch(stored(2, 0, 128, 64))))
	if !s.renew.Load() {
		t.Error("the feed did not notice that the index was replaced")
	}
}

func TestHybridModelsAreDegraded(t *testing.T) {
	full, window := stored(1, 0, 480, 32), stored(1, 0, 480, 32)
	full.Group, full.Spec = 1, "full_attention"
	window.Group, window.Spec, window.Window = 0, "sliding_window", 128
	window.Hashes = window.Hashes[11:]
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 32))
	s.Message(0, wire(t, "vllm-0.32.0", batch(window, full)))
	if got := r.match(prompt(1, 600)); got != 480 {
		t.Errorf("match %d, want 480", got)
	}
	if got := r.match(prompt(1, 200)); got != 0 {
		t.Errorf("a shorter prompt matches %d tokens, although the blocks of its window are removed", got)
	}
	r.trust(s.holder, fleet.TrustDegraded, "sliding_window")

	// The events of vLLM 0.20 number the cache groups, but do not say their kinds.
	full.Spec, window.Spec, window.Window = "", "", 0
	r = newRig(t, Config{})
	s = r.stream(facts(fleet.EngineVLLM, 32))
	s.Message(0, wire(t, "vllm-0.20.0", batch(window, full)))
	r.trust(s.holder, fleet.TrustDegraded, "without naming their kinds")
	if got := r.match(prompt(1, 200)); got != 0 {
		t.Errorf("match %d", got)
	}
}

func TestAResetSparesTheTiersThatTheEngineSpares(t *testing.T) {
	for _, test := range []struct {
		engine  fleet.Engine
		version string
		medium  string
		want    int
	}{
		{fleet.EngineVLLM, "vllm-0.32.0", "CPU", 64},
		{fleet.EngineSGLang, "sglang-0.5.23", "CPU_PINNED", 0},
		{fleet.EngineOther, "vllm-0.32.0", "CPU", 0},
	} {
		r := newRig(t, Config{})
		s := r.stream(facts(test.engine, 16))
		gpu, host := stored(1, 0, 64, 16), stored(1, 0, 64, 16)
		host.Medium, host.Tier = test.medium, block.TierCPU
		gpu.ExtraKeys = nil
		s.Message(0, wire(t, test.version, batch(gpu)))
		s.Message(1, wire(t, test.version, batch(host)))
		s.Message(2, wire(t, test.version, batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
		if got := r.match(prompt(1, 200)); got != test.want {
			t.Errorf("%v: match after a reset %d, want %d", test.engine, got, test.want)
		}
	}
}

func TestSilenceIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		answer := func(n int) {
			for range n {
				var res fleet.Reservation
				r.fleet.Reserve(&res, s.holder, fleet.Work{UncachedTokens: 10, ContextBlocks: 1}, time.Now().UnixNano())
				res.Release(0)
			}
		}
		testenv.Pass(2 * time.Minute)
		s.look(time.Now())
		r.trust(s.holder, fleet.TrustExact, "") // the trust stays exact: an engine without requests sends no events
		answer(40)
		s.look(time.Now())
		r.trust(s.holder, fleet.TrustApproximate, "no events for 120 s though it answered 40 requests")
		if want := "worker " + workerURL + " has sent no events for 120 s though it answered 40 requests"; !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, r.log)
		}
		s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
		r.trust(s.holder, fleet.TrustExact, "")
		answer(10)
		testenv.Pass(2 * time.Minute)
		s.look(time.Now())
		r.trust(s.holder, fleet.TrustExact, "") // the trust stays exact: the prompts of all ten requests may have been cached
		answer(40)
		s.look(time.Now())
		r.trust(s.holder, fleet.TrustDegraded, "no events for 120 s though it answered 50 requests")
	})
}

func TestSilenceIsNoLossWhereReplayProvesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		s.source.Replay = "tcp://127.0.0.1:5657"
		s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
		testenv.Pass(2 * time.Minute)
		for range 40 {
			var res fleet.Reservation
			r.fleet.Reserve(&res, s.holder, fleet.Work{}, time.Now().UnixNano())
			res.Release(0)
		}
		s.look(time.Now())
		r.trust(s.holder, fleet.TrustExact, "")
		if !strings.Contains(r.log.String(), "no events for 120 s") {
			t.Error("the log does not say that no events came for 120 s")
		}
	})
}

func TestADisconnectedStreamThatIsForgottenLearnsFromRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
		s.State(false, errors.New("connection reset"))
		s.Lost(1, 1)
		testenv.Pass(time.Minute)
		s.look(time.Now())
		r.trust(s.holder, fleet.TrustApproximate, "disconnected")
	})
}

func TestADisconnectedStreamIsNotBelievedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
		s.State(false, errors.New("connection reset"))
		r.trust(s.holder, fleet.TrustDegraded, "disconnected: connection reset")
		testenv.Pass(6 * time.Second)
		s.look(time.Now())
		r.trust(s.holder, fleet.TrustNone, "disconnected since")
		if got := r.match(prompt(1, 200)); got != 0 {
			t.Errorf("match %d", got)
		}
		s.State(true, nil)
		s.Complete()
		r.trust(s.holder, fleet.TrustExact, "")
		if got := r.match(prompt(1, 200)); got != 64 {
			t.Errorf("match after the reconnect %d, want 64", got)
		}
	})
}

func TestHashChainOfTheEngineIsIdentified(t *testing.T) {
	h, err := block.NewEngineHasher(block.EngineChain{Algorithm: block.VLLMSHA256CBOR, Size: 16, Seed: "42"})
	if err != nil {
		t.Fatal(err)
	}
	e := stored(1, 0, 64, 16)
	e.Hashes = nil
	for _, d := range h.Append(nil, h.Root("", ""), e.Tokens, nil) {
		e.Hashes = append(e.Hashes, h.Normal(d))
	}
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	s.Message(0, wire(t, "vllm-0.32.0", batch(e)))
	if got := s.snapshot().Hash; got != `sha256_cbor, seed "42"` {
		t.Errorf("hash %q", got)
	}
	r = newRig(t, Config{})
	s = r.stream(facts(fleet.EngineVLLM, 16))
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
	if got := s.snapshot().Hash; got != "not reproduced" {
		t.Errorf("hash %q", got)
	}
}

func TestWarningsAreNotRepeatedForEveryMessage(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	for i := range 100 {
		s.Message(uint64(i), []byte{0x93, 0xc1})
	}
	if n := strings.Count(r.log.String(), "could not be read: forgetting"); n != 1 {
		t.Errorf("%d warnings", n)
	}
	if st := s.snapshot(); st.Undecodable != 100 || !strings.Contains(st.LastError, "message 99: decode events") {
		t.Errorf("stats %+v", st)
	}
}

func TestMessagesAreAppliedWithoutAllocation(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	var add, drop [][]byte
	for i := range 8 {
		add = append(add, wire(t, "vllm-0.32.0", batch(stored(i, 0, 512, 16))))
		drop = append(drop, wire(t, "vllm-0.32.0", batch(removed(i, 0, 32))))
	}
	seq := uint64(0)
	run := func() {
		for i := range add {
			s.Message(seq, add[i])
			s.Message(seq+1, drop[i])
			seq += 2
		}
	}
	run()
	if allocs := testing.AllocsPerRun(50, run); allocs > 2 {
		t.Errorf("%v allocations for %d messages", allocs, 2*len(add))
	}
}

func BenchmarkMessage(b *testing.B) {
	for _, blocks := range []int{1, 32, 512} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			r := newRig(b, Config{})
			s := r.stream(facts(fleet.EngineVLLM, 16))
			const conversations = 1024
			var add, drop [][]byte
			for i := range conversations {
				add = append(add, wire(b, "vllm-0.32.0", batch(stored(i, 0, blocks*16, 16))))
				drop = append(drop, wire(b, "vllm-0.32.0", batch(removed(i, 0, blocks))))
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Message(uint64(2*i), add[i%conversations])
				s.Message(uint64(2*i+1), drop[(i+conversations/2)%conversations])
				i++
			}
			b.ReportMetric(float64(blocks)*float64(i)/b.Elapsed().Seconds(), "stored/s")
		})
	}
}

// The problems of a stream, such as groups without kinds or a tier without removals, end with its engine: another
// engine may have other groups and tiers. The new engine also has a slow start.
func TestARestartEndsTheProblemsOfTheEngineBefore(t *testing.T) {
	full, window, host := stored(1, 0, 480, 32), stored(1, 0, 480, 32), stored(2, 0, 64, 32)
	full.Group, full.Spec = 1, "full_attention"
	window.Group, window.Spec, window.Window = 0, "sliding_window", 128
	host.Medium = "cpu"
	unnamed := [2]kvevent.Event{stored(3, 0, 64, 32), stored(4, 0, 64, 32)}
	unnamed[0].Group, unnamed[1].Group = 0, 1
	for name, test := range map[string]struct {
		message []byte
		trust   fleet.Trust
		why     string
	}{
		"hybrid":  {wire(t, "vllm-0.32.0", batch(window, full)), fleet.TrustDegraded, "sliding_window"},
		"unnamed": {wire(t, "vllm-0.20.0", batch(unnamed[:]...)), fleet.TrustDegraded, "without naming their kinds"},
		"leaking": {wire(t, "vllm-0.32.0", batch(host)), fleet.TrustApproximate, "announces no removals"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(fleet.EngineVLLM, 32))
			s.Message(0, test.message)
			r.trust(s.holder, test.trust, test.why)
			var sent fleet.Reservation
			r.fleet.Reserve(&sent, s.holder, fleet.Work{}, time.Now().UnixNano())
			sent.Release(0)
			share := func() float64 {
				return r.fleet.Snapshot().Share(s.holder, time.Now().UnixNano())
			}
			if got := share(); got != 1 {
				t.Fatalf("the holder's share is %v before the restart", got)
			}
			s.Restarted("its numbers began again")
			s.Complete()
			s.Message(0, wire(t, "vllm-0.32.0", batch(stored(5, 0, 64, 32))))
			r.trust(s.holder, fleet.TrustExact, "")
			if got := share(); got >= 1 {
				t.Errorf("the holder's share is %v after the restart, want a slow start", got)
			}
			if name != "unnamed" {
				return
			}
			two := [2]kvevent.Event{stored(6, 0, 64, 32), stored(7, 0, 64, 32)}
			for i := range two {
				two[i].Group, two[i].Spec = i, "full_attention"
			}
			s.Message(1, wire(t, "vllm-0.32.0", batch(two[:]...)))
			r.trust(s.holder, fleet.TrustExact, "")
		})
	}
}
