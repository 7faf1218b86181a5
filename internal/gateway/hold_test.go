package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

// outage is a gateway in virtual time whose workers come and go.
type outage struct {
	*askedEngines
	stop func() // drains the gateway and waits until it has ended

	mu   sync.Mutex
	came []string // the field user of the requests that reached a worker, in order
}

// hold starts a gateway with n workers. Call it in a bubble of synctest.
func holding(t *testing.T, n int, cfg gateway.HoldConfig, change func(*gateway.Parts)) *outage {
	t.Helper()
	return holdingAs(t, n, cfg, change, func(http.ResponseWriter) bool { return false })
}

// holdingAs does the same, with workers that refuse a request if refuse answers it.
func holdingAs(t *testing.T, n int, cfg gateway.HoldConfig, change func(*gateway.Parts), refuse func(http.ResponseWriter) bool) *outage {
	t.Helper()
	o := &outage{}
	how := rig{gateway: gateway.DefaultConfig(), parts: change, answer: func(w http.ResponseWriter, r *http.Request) {
		if refuse(w) {
			return
		}
		body, _ := io.ReadAll(r.Body)
		var request struct{ User string }
		_ = json.Unmarshal(body, &request)
		o.mu.Lock()
		o.came = append(o.came, request.User)
		o.mu.Unlock()
		takes(r, time.Second)
		plain(w, r)
	}}
	how.gateway.Hold = cfg
	o.askedEngines = askEnginesAs(t, how, n, time.Millisecond, time.Millisecond)
	l, err := network.NewMemory().Host("10.0.2.1").Listen("tcp", "10.0.2.1:80")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- o.Serve(ctx, l) }() // stop waits for it
	o.stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(o.stop)
	synctest.Wait()
	return o
}

// sent is a request under way.
type sent struct {
	*httptest.ResponseRecorder
	cancel context.CancelFunc
	done   chan struct{}
	took   time.Duration
}

// send sends a request of user.
func (o *outage) send(user string, headers ...string) *sent {
	return o.sendTo("m", user, headers...)
}

func (o *outage) sendTo(model, user string, headers ...string) *sent {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sent{ResponseRecorder: httptest.NewRecorder(), cancel: cancel, done: make(chan struct{})}
	body := fmt.Sprintf(`{"model":%q,"user":%q,"prompt":[1,2,3]}`, model, user)
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body)).WithContext(ctx)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	began := time.Now()
	go func() { // ends with the request; the test waits for done
		defer close(s.done)
		defer func() { _ = recover() }() // the answer of a client that left is cut
		o.ServeHTTP(s, r)
		s.took = time.Since(began)
	}()
	synctest.Wait()
	return s
}

// code waits for the answer and returns its status and the code of its error.
func (s *sent) code() string {
	<-s.done
	var answer struct{ Error struct{ Code string } }
	_ = json.Unmarshal(s.Body.Bytes(), &answer)
	return strings.TrimSpace(fmt.Sprint(s.Code, " ", answer.Error.Code))
}

func (o *outage) metric(t *testing.T, name string) string {
	t.Helper()
	w := httptest.NewRecorder()
	o.Telemetry.Handler(telemetry.Sources{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(w.Body.String())
	if m == nil {
		return ""
	}
	return m[1]
}

func (o *outage) order() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.came)
}

var facts = fleet.Facts{Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16}

const first = "http://10.0.0.1:80"

// Each way in which all workers of a model can be unavailable, and how they return.
func TestARequestIsHeldUntilAWorkerReturns(t *testing.T) {
	for name, c := range map[string]struct{ leave, back func(f *fleet.Fleet) }{
		"the active checks fail": {
			func(f *fleet.Fleet) { f.SetHealth(0, false, "no answer") },
			func(f *fleet.Fleet) { f.SetHealth(0, true, "") }},
		"the worker drains": {
			func(f *fleet.Fleet) { f.SetDraining(0, true) },
			func(f *fleet.Fleet) { f.SetDraining(0, false) }},
		"the breaker is open": {
			func(f *fleet.Fleet) {
				for range 7 { // the breaker opens for a time that doubles at each failed trial
					f.Observe(0, fleet.OutcomeFailed, time.Now().UnixNano())
				}
			},
			func(f *fleet.Fleet) {}},
		"the worker left the fleet": {
			func(f *fleet.Fleet) { f.Remove(0) },
			func(f *fleet.Fleet) { f.Put(first, facts) }},
		"the worker has not reported its models yet": {
			func(f *fleet.Fleet) { f.Put(first, fleet.Facts{}) },
			func(f *fleet.Fleet) { f.Put(first, facts) }},
	} {
		for _, queued := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				o := holding(t, 1, gateway.DefaultHoldConfig(), func(p *gateway.Parts) {
					if p.Queue = queue.DefaultConfig(); queued {
						p.Queue.Order = queue.FCFS
					}
				})
				c.leave(o.fleet)
				synctest.Wait()
				s := o.send("a")
				if got := o.metric(t, "warmpath_held_requests"); got != "1" || o.metric(t, "warmpath_held_bytes") == "0" {
					t.Errorf("%s: %s requests are held", name, got)
				}
				testenv.Pass(2 * time.Second)
				began := time.Now()
				c.back(o.fleet)
				if got := s.code(); got != "200" || s.Body.String() != whole {
					t.Errorf("%s, queued %v: %s %s", name, queued, got, s.Body)
				}
				if late := time.Since(began) - time.Second; name != "the breaker is open" && late > 0 {
					t.Errorf("%s, queued %v: the request went on %v after the worker's return", name, queued, late)
				}
				held, err := time.ParseDuration(s.Header().Get("X-Warmpath-Held"))
				rec := o.Telemetry.Last(1)[0]
				if err != nil || held < 2*time.Second || held > 40*time.Second || rec.HeldMS != float64(held.Milliseconds()) || rec.QueueMS != 0 {
					t.Errorf("%s: the header says %v (%v), the record %v ms", name, held, err, rec.HeldMS)
				}
				if o.metric(t, `warmpath_hold_wait_seconds_count{outcome="routed"}`) != "1" || o.metric(t, "warmpath_held_requests") != "0" || o.metric(t, "warmpath_held_bytes") != "0" {
					t.Errorf("%s: the metrics do not count the request", name)
				}
			})
		}
	}
}

func TestAModelThatNoWorkerEverServedIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.DefaultHoldConfig(), nil)
		if s := o.sendTo("other", "a"); s.code() != "404 model_not_found" || s.took > 0 {
			t.Errorf("%s after %v", s.code(), s.took)
		}
		o.fleet.SetHealth(0, false, "down")
		if s := o.sendTo("other", "a"); s.code() != "404 model_not_found" || s.took > 0 {
			t.Errorf("the fleet is down: %s after %v", s.code(), s.took)
		}
		// A worker that is present and no longer serves the model: an operator unloaded the model.
		o.fleet.SetHealth(0, true, "")
		o.fleet.Put(first, fleet.Facts{Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "next"}}})
		synctest.Wait()
		if s := o.send("a"); s.code() != "404 model_not_found" || s.took > 0 {
			t.Errorf("unloaded: %s after %v", s.code(), s.took)
		}
		// While a worker has not reported its models, nobody knows. When it has, the answer is certain.
		o.fleet.Put("http://10.0.0.9:80", fleet.Facts{})
		s := o.send("a")
		testenv.Pass(time.Second)
		o.fleet.Put("http://10.0.0.9:80", fleet.Facts{Models: []fleet.Model{{ID: "third"}}})
		if s.code() != "404 model_not_found" || s.took != time.Second {
			t.Errorf("unheard: %s after %v", s.code(), s.took)
		}
	})
}

func TestAHoldIsBoundedInTimeNumberAndBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.HoldConfig{MaxWait: 10 * time.Second, MaxRequests: 2, MaxBytes: 100}, nil)
		o.fleet.SetHealth(0, false, "down")
		a, b := o.send("a"), o.send("b", "X-Warmpath-Max-Wait", "3s")
		c := o.send("c")
		if c.code() != "503 hold_full" || c.took > 0 || c.Header().Get("Retry-After") == "" {
			t.Errorf("a third request: %s after %v", c.code(), c.took)
		}
		if b.code() != "503 hold_timeout" || b.took != 3*time.Second || b.Header().Get("Retry-After") == "" || b.Header().Get("X-Warmpath-Held") != "3s" {
			t.Errorf("a request with patience for 3 s: %s after %v, %v", b.code(), b.took, b.Header())
		}
		if d := o.send(strings.Repeat("d", 100)); d.code() != "503 hold_full" {
			t.Errorf("a large request: %s", d.code())
		}
		if a.code() != "503 hold_timeout" || a.took != 10*time.Second {
			t.Errorf("the first request: %s after %v", a.code(), a.took)
		}
		if e := o.send("e", "X-Warmpath-Max-Wait", "1h"); e.code() != "503 hold_timeout" || e.took != 10*time.Second {
			t.Errorf("a request with patience for an hour: %s after %v", e.code(), e.took)
		}
		for outcome, want := range map[string]string{"full": "2", "timeout": "3"} {
			if got := o.metric(t, `warmpath_hold_wait_seconds_count{outcome="`+outcome+`"}`); got != want {
				t.Errorf("%s: %s", outcome, got)
			}
		}
	})
}

func TestATenantCannotKeepOthersOutOfTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := tenant.NewRegistry()
		registry.Use([]tenant.Config{{Name: "flood", KeysSHA256: hashed("f")}, {Name: "light", KeysSHA256: hashed("l")}}, nil)
		o := holding(t, 1, gateway.HoldConfig{MaxWait: time.Minute, MaxRequests: 4, MaxBytes: 10_000}, func(p *gateway.Parts) { p.Tenants = registry })
		o.fleet.SetHealth(0, false, "down")
		send := func(user, key string) *sent {
			s := o.send(user, "X-Api-Key", key)
			synctest.Wait()
			return s
		}
		floods := []*sent{send("f1", "f"), send("f2", "f"), send("f3", "f"), send("f4", "f")}
		if s := send("f5", "f"); s.code() != "503 hold_full" {
			t.Errorf("one more request of the flood: %s", s.code())
		}
		large := send(strings.Repeat("l", 9_900), "l")
		if large.code() != "503 hold_full" {
			t.Errorf("a request for which no room can be made: %s", large.code())
		}
		lights := []*sent{send("l1", "l"), send("l2", "l")}
		if s := send("l3", "l"); s.code() != "503 hold_full" {
			t.Errorf("a request beyond the tenant's share: %s", s.code())
		}
		for _, s := range floods[2:] {
			if s.code() != "503 hold_full" || s.Header().Get("Retry-After") == "" {
				t.Errorf("a request that was shed: %s", s.code())
			}
		}
		o.fleet.SetHealth(0, true, "")
		for _, s := range append(floods[:2], lights...) {
			if s.code() != "200" {
				t.Errorf("a request that kept its place: %s", s.code())
			}
		}
		if got := o.metric(t, "warmpath_held_requests"); got != "0" {
			t.Errorf("%s requests are held", got)
		}
	})
}

func TestAClientThatLeavesFreesItsPlaceInTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.HoldConfig{MaxWait: time.Minute, MaxRequests: 1, MaxBytes: 1000}, nil)
		o.fleet.SetHealth(0, false, "down")
		a := o.send("a")
		a.cancel()
		<-a.done
		b := o.send("b")
		o.fleet.SetHealth(0, true, "")
		if b.code() != "200" || !slices.Equal(o.order(), []string{"b"}) {
			t.Errorf("%s, the worker got the requests of %v", b.code(), o.order())
		}
		if o.metric(t, `warmpath_hold_wait_seconds_count{outcome="client_gone"}`) != "1" {
			t.Error("the client that left is not counted")
		}
	})
}

// A breaker that was open lets one request pass as a trial. If the trial's client leaves, the next request is the
// trial. So the requests reach the worker in the order of their arrival, and no later request overtakes them.
func TestHeldRequestsGoInTheOrderOfTheirArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.DefaultHoldConfig(), nil)
		for range 3 {
			o.fleet.Observe(0, fleet.OutcomeFailed, time.Now().UnixNano())
		}
		var all []*sent
		var want []string
		for i := range 20 {
			user := fmt.Sprint("user", i)
			all, want = append(all, o.send(user)), append(want, user)
			testenv.Pass(50 * time.Millisecond)
		}
		testenv.Pass(1100 * time.Millisecond) // the first trial is under way
		all, want = append(all, o.send("late")), append(want, "late")
		for i, s := range all {
			if got := o.order(); !slices.Equal(got, want[:i+1]) {
				t.Fatalf("the worker got %v", got)
			}
			s.cancel()
			<-s.done
			synctest.Wait()
		}
	})
}

// A request whose body comes slowly has its place by its arrival, too.
func TestARequestThatIsHeldLateKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.DefaultHoldConfig(), nil)
		o.fleet.SetDraining(0, true)
		body, client := io.Pipe()
		a := httptest.NewRequest(http.MethodPost, "/v1/completions", body)
		done := make(chan struct{})
		go func() { defer close(done); o.ServeHTTP(httptest.NewRecorder(), a) }() // the test waits for done
		testenv.Pass(500 * time.Millisecond)
		b := o.send("b") // is held before a
		_, _ = io.WriteString(client, `{"model":"m","user":"a","prompt":[1,2,3]}`)
		_ = client.Close()
		testenv.Pass(10 * time.Second)
		for range 3 { // the breaker lets one request pass
			o.fleet.Observe(0, fleet.OutcomeFailed, time.Now().UnixNano())
		}
		o.fleet.SetDraining(0, false)
		for len(o.order()) == 0 {
			testenv.Pass(100 * time.Millisecond)
		}
		if got := o.order(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("the worker got %v", got)
		}
		<-done
		if b.code() != "200" {
			t.Errorf("%s", b.code())
		}
	})
}

// No process listens at the worker's address. When its breaker lets a request pass, a held request is the trial.
func TestAHeldRequestIsTheTrialOfAnOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 0, gateway.DefaultHoldConfig(), nil)
		id := o.fleet.Put("http://10.0.0.3:80", facts)
		a := o.send("a")
		for range 3 {
			o.fleet.Observe(fleet.Holder(id), fleet.OutcomeFailed, time.Now().UnixNano())
		}
		o.send("b").cancel() // wakes those that wait
		testenv.Pass(40 * time.Second)
		if a.code() != "503 hold_timeout" || a.took != 30*time.Second {
			t.Errorf("%s after %v", a.code(), a.took)
		}
		for _, rec := range o.Telemetry.Last(2) {
			if rec.Finish != "" && rec.Attempts < 3 {
				t.Errorf("%d attempts", rec.Attempts)
			}
		}
	})
}

// Without tenants a client can send any number of keys, so no key has a part of the hold.
func TestKeysOfNobodyShedNoHeldRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.HoldConfig{MaxWait: time.Minute, MaxRequests: 2, MaxBytes: 10_000}, nil)
		o.fleet.SetHealth(0, false, "down")
		a, b := o.send("a", "X-Api-Key", "one"), o.send("b", "X-Api-Key", "one")
		if c := o.send("c", "X-Api-Key", "two"); c.code() != "503 hold_full" {
			t.Errorf("another key: %s", c.code())
		}
		o.fleet.SetHealth(0, true, "")
		if a.code() != "200" || b.code() != "200" {
			t.Errorf("held requests: %s, %s", a.code(), b.code())
		}
	})
}

// The last worker of a model leaves the fleet, and workers of other models stay.
func TestARequestIsHeldForAModelWhoseWorkersLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.DefaultHoldConfig(), nil)
		other := facts
		other.Models = []fleet.Model{{ID: "other"}}
		o.fleet.Put("http://10.0.0.3:80", other)
		synctest.Wait()
		o.fleet.Remove(0)
		synctest.Wait()
		a := o.send("a")
		testenv.Pass(3 * time.Second)
		o.fleet.Put(first, facts)
		if a.code() != "200" || a.took != 4*time.Second {
			t.Errorf("%s after %v", a.code(), a.took)
		}
	})
}

// A held request that only one worker may serve does not hold up the others.
func TestARequestForADeadWorkerHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 2, gateway.DefaultHoldConfig(), nil)
		o.fleet.SetHealth(0, false, "down")
		named := o.send("named", "X-Warmpath-Target", first)
		if s := o.send("free"); s.code() != "200" || s.took != time.Second || s.Header().Get("X-Warmpath-Held") != "" {
			t.Errorf("%s after %v", s.code(), s.took)
		}
		o.fleet.SetHealth(1, false, "down")
		free := o.send("free")
		o.fleet.SetHealth(1, true, "")
		if free.code() != "200" {
			t.Errorf("%s", free.code())
		}
		o.fleet.Remove(0)
		if named.code() != "400 invalid_request" {
			t.Errorf("its worker left: %s", named.code())
		}
	})
}

func TestAReloadThatTurnsTheHoldOffLetsHeldRequestsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.DefaultHoldConfig(), nil)
		o.fleet.SetHealth(0, false, "down")
		a := o.send("a")
		testenv.Pass(time.Second)
		o.UseHold(gateway.HoldConfig{MaxRequests: 1, MaxBytes: 1})
		if a.code() != "503 no_worker" || a.took != time.Second || a.Header().Get("Retry-After") == "" {
			t.Errorf("%s after %v", a.code(), a.took)
		}
		if b := o.send("b"); b.code() != "503 no_worker" || b.took > 0 {
			t.Errorf("a later request: %s after %v", b.code(), b.took)
		}
		o.UseHold(gateway.DefaultHoldConfig())
		c := o.send("c")
		o.fleet.SetHealth(0, true, "")
		if c.code() != "200" {
			t.Errorf("turned on again: %s", c.code())
		}
	})
}

func TestADrainEndsHeldRequestsWithAClearError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.DefaultHoldConfig(), nil)
		o.fleet.SetHealth(0, false, "down")
		a := o.send("a")
		o.stop()
		if a.code() != "503 draining" || a.Header().Get("Retry-After") == "" {
			t.Errorf("%s", a.code())
		}
	})
}

// The router has not noticed yet that its only worker is down: the request's own connection is refused. It is sent
// again when the worker is back.
func TestARequestThatAWorkerRefusedIsHeldAndSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 0, gateway.DefaultHoldConfig(), nil)
		o.fleet.Put("http://10.0.0.3:80", facts) // nothing listens there
		id := o.fleet.Put("http://10.0.0.4:80", facts)
		a := o.send("a")
		if rec := len(o.Telemetry.Last(0)); rec != 0 || o.metric(t, "warmpath_held_requests") != "1" {
			t.Fatalf("the request is not held: %d ended, %s", rec, a.Body)
		}
		testenv.Pass(time.Second)
		o.fleet.Answered(id, fleet.Signs{}) // another process is there, and refuses again
		synctest.Wait()
		if o.metric(t, "warmpath_held_requests") != "1" {
			t.Fatal("the request is not held again")
		}
		testenv.Pass(40 * time.Second)
		if a.code() != "503 hold_timeout" || a.took != 30*time.Second {
			t.Errorf("%s after %v", a.code(), a.took)
		}
		if rec := o.Telemetry.Last(1)[0]; rec.Attempts != 3 || rec.HeldMS != 30000 {
			t.Errorf("%d attempts, held %v ms", rec.Attempts, rec.HeldMS)
		}
	})
}

// A worker that may have received a request may have died of it: the request is not held for the next worker.
func TestARequestThatAWorkerMayHaveReceivedIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holdingAs(t, 1, gateway.DefaultHoldConfig(), nil, func(http.ResponseWriter) bool { panic(http.ErrAbortHandler) })
		if a := o.send("a"); a.Code != 502 || a.took > 5*time.Second || a.Header().Get("X-Warmpath-Held") != "" {
			t.Errorf("%s after %v, %v", a.code(), a.took, a.Header())
		}
		if got := o.metric(t, "warmpath_held_requests"); got != "0" {
			t.Errorf("%s requests are held", got)
		}
	})
}

// The router has not noticed yet that the model's only worker is down. A fall-back takes the request at once.
func TestARequestThatAWorkerRefusedFallsBackBeforeItIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 1, gateway.DefaultHoldConfig(), nil)
		small := facts
		small.Models = []fleet.Model{{ID: "small", MaxModelLen: 4096}}
		o.fleet.Put(first, small)
		o.fleet.Put("http://10.0.0.3:80", facts) // nothing listens there
		o.UseModelNames(gateway.ModelNames{Fallbacks: map[string][]string{"m": {"small"}}})
		a := o.send("a")
		if a.code() != "200" || a.took > 2*time.Second || a.Header().Get("X-Warmpath-Model") != "small" || a.Header().Get("X-Warmpath-Held") != "" {
			t.Errorf("%s after %v, %v", a.code(), a.took, a.Header())
		}
	})
}

// The only worker is healthy, and answers 503 now and then, as SGLang does while its queue is full. No check shows that
// it takes requests again, so the request goes there again after some seconds.
func TestARequestThatABusyWorkerRefusedIsSentAgain(t *testing.T) {
	for _, refusals := range []int64{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			var busy atomic.Int64
			busy.Store(refusals)
			o := holdingAs(t, 1, gateway.DefaultHoldConfig(), nil, func(w http.ResponseWriter) bool {
				if busy.Add(-1) < 0 {
					return false
				}
				http.Error(w, `{"error":{"message":"The request queue is full.","code":503}}`, http.StatusServiceUnavailable)
				return true
			})
			a := o.send("a")
			testenv.Pass(time.Second)
			b := o.send("b") // may go to the worker at once
			testenv.Pass(8 * time.Second)
			if refusals == 1 {
				if a.code() != "200" || b.code() != "200" || b.took > 2*time.Second || a.took > 9*time.Second {
					t.Errorf("%s after %v, %s after %v", a.code(), a.took, b.code(), b.took)
				}
			} else if a.code() != "503" || a.took > 10*time.Second || !strings.Contains(a.Body.String(), "queue is full") {
				t.Errorf("%s after %v: %s", a.code(), a.took, a.Body)
			}
		})
	}
}

// A 502 or 504 may come from a proxy in front of the engine, and the request may have killed the engine. So it is not
// sent again when the worker returns. A 503 is sent again once, however often the worker changes.
func TestARequestThatMayHaveKilledItsWorkerIsNotHeld(t *testing.T) {
	const text = "cannot schedule new futures after shutdown"
	for _, c := range []struct {
		status int
		text   string
		asked  int64
	}{
		{http.StatusBadGateway, "upstream prematurely closed connection", 1}, {http.StatusGatewayTimeout, "upstream timed out", 1},
		{http.StatusServiceUnavailable, "loading", 2}, {http.StatusInternalServerError, text, 2}, {http.StatusBadGateway, text, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			o := holdingAs(t, 1, gateway.DefaultHoldConfig(), nil, func(w http.ResponseWriter) bool {
				asked.Add(1)
				http.Error(w, fmt.Sprintf(`{"error":{"message":%q,"code":%d}}`, c.text, c.status), c.status)
				return true
			})
			a := o.send("a")
			for range 20 {
				o.fleet.SetHealth(0, false, "down")
				testenv.Pass(time.Second)
				o.fleet.SetHealth(0, true, "")
				testenv.Pass(time.Second)
			}
			if got := a.code(); got != fmt.Sprint(c.status) || !strings.Contains(a.Body.String(), c.text) || asked.Load() != c.asked {
				t.Errorf("%d %s: the client got %s, the worker was asked %d times", c.status, c.text, got, asked.Load())
			}
		})
	}
}

// Workers come and go at random while clients come and leave at random. Every request gets an answer, none is left in
// the hold, and none reaches a worker later than it may.
func TestNoHeldRequestIsLost(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			o := holding(t, 2, gateway.HoldConfig{MaxWait: 5 * time.Second, MaxRequests: 20, MaxBytes: 10_000}, func(p *gateway.Parts) {
				if p.Queue = queue.DefaultConfig(); seed%2 == 0 {
					p.Queue.Order, p.MaxRequests = queue.FCFS, 2
				}
			})
			var all []*sent
			for range 100 {
				switch random.IntN(6) {
				case 0:
					o.fleet.SetHealth(fleet.WorkerID(random.IntN(2)), random.IntN(2) == 0, "down")
				case 1:
					o.fleet.SetDraining(fleet.WorkerID(random.IntN(2)), random.IntN(2) == 0)
				case 2:
					o.fleet.Observe(fleet.Holder(random.IntN(2)), fleet.OutcomeFailed, time.Now().UnixNano())
				case 3:
					if len(all) > 0 {
						all[random.IntN(len(all))].cancel()
					}
				default:
					all = append(all, o.send(fmt.Sprint(len(all))))
				}
				testenv.Pass(time.Duration(random.IntN(500)) * time.Millisecond)
			}
			for _, s := range all {
				switch got := s.code(); got {
				case "200", "503 hold_timeout", "503 hold_full", "429 queue_timeout", "429 queue_too_long":
				default:
					t.Errorf("seed %d: %s %s", seed, got, s.Body)
				}
				if s.took > 40*time.Second {
					t.Errorf("seed %d: an answer after %v", seed, s.took)
				}
			}
			if o.metric(t, "warmpath_held_requests") != "0" || o.metric(t, "warmpath_held_bytes") != "0" {
				t.Errorf("seed %d: %s requests are left", seed, o.metric(t, "warmpath_held_requests"))
			}
		})
	}
}
