package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/test/testenv"
)

// level returns the service level that text names.
func level(text string) fleet.ServiceLevel {
	l, err := fleet.ParseServiceLevel(text)
	if err != nil {
		panic(err)
	}
	return l
}

func levelsOf(texts ...string) []fleet.ServiceLevel {
	list := []fleet.ServiceLevel{}
	for _, text := range texts {
		list = append(list, level(text))
	}
	return list
}

// explained returns the service levels of a request for the model, as the router gets them.
func (f *fixture) explained(t *testing.T, model string, headers ...string) (levels []fleet.ServiceLevel, err error) {
	t.Helper()
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Add(headers[i], headers[i+1])
	}
	all, err := f.Explain(t.Context(), &gateway.Question{Dialect: api.OpenAIChat, Body: []byte(strings.Replace(chat, `"m"`, `"`+model+`"`, 1)), Header: h})
	if err != nil {
		return nil, err
	}
	return all[0].Levels, nil
}

func TestTheLevelsOfTheRequestComeBeforeThoseOfTheTenantTheModelAndAll(t *testing.T) {
	f := serve(t, func(s *settings) {
		s.gateway.TenantHeader = "x-customer"
		s.facts.Models = []fleet.Model{{ID: "m"}, {ID: "n"}, {ID: "adapter", Parent: "n"}, {ID: "other", Parent: "n"}}
	}, worker(t, plain))
	long := strings.Repeat("t", 300)
	f.UseServiceLevels(gateway.ServiceLevels{
		All:       levelsOf("5s/100ms", "2s/50ms"),
		ByModel:   map[string][]fleet.ServiceLevel{"n": levelsOf("3s"), "other": levelsOf("4s")},
		ByTenant:  map[string][]fleet.ServiceLevel{"acme": levelsOf("1s/20ms"), "free": {}, long: levelsOf("6s")},
		ByRequest: true,
	})
	const own = "X-Warmpath-Service-Levels"
	for _, c := range []struct {
		model   string
		headers []string
		want    string
	}{
		{"m", nil, "[5s/100ms 2s/50ms]"},
		{"m", []string{"X-Customer", "unknown"}, "[5s/100ms 2s/50ms]"},
		{"m", []string{"Authorization", "acme"}, "[5s/100ms 2s/50ms]"},
		{"n", nil, "[3s]"},
		{"adapter", nil, "[3s]"},
		{"other", nil, "[4s]"},
		{"n", []string{"X-Customer", "acme"}, "[1s/20ms]"},
		{"n", []string{"X-Customer", "free"}, "[]"},
		{"n", []string{"X-Customer", long}, "[6s]"},
		{"n", []string{"X-Customer", "acme", own, "7s/30ms,8s"}, "[7s/30ms 8s]"},
		{"n", []string{"X-Customer", "acme", own, " 7s/30ms ,\t8s "}, "[7s/30ms 8s]"},
		{"n", []string{"X-Customer", "acme", own, "none"}, "[]"},
		{"n", []string{"X-Customer", "acme", own, " "}, "[1s/20ms]"},
	} {
		got, err := f.explained(t, c.model, c.headers...)
		if fmt.Sprint(got) != c.want || got == nil || err != nil {
			t.Errorf("%s %.80q: %v, %v; want %s", c.model, c.headers, got, err, c.want)
		}
	}
	f.UseServiceLevels(gateway.ServiceLevels{})
	if got, err := f.explained(t, "m"); err != nil || got == nil || len(got) > 0 {
		t.Errorf("no levels are set, and a request has %#v, %v", got, err)
	}
}

func TestARequestNamesItsLevelsOnlyWhereThatIsAllowed(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	const own = "X-Warmpath-Service-Levels"
	f.UseServiceLevels(gateway.ServiceLevels{All: levelsOf("5s/100ms")})
	for _, value := range []string{"5s/100ms", "none", "?"} {
		resp, text := f.post(t, chat, own, value)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(text, "have the operator set request_service_levels") {
			t.Errorf("%q is not allowed: %d %s", value, resp.StatusCode, text)
		}
	}
	if resp, text := f.post(t, chat, own, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("an empty header names no levels: %d %s", resp.StatusCode, text)
	}
	f.UseServiceLevels(gateway.ServiceLevels{ByRequest: true})
	for value, want := range map[string]string{
		"fast":                     "X-Warmpath-Service-Levels must list up to 4 levels such as 5s/100ms, or be none: service level \"fast\" is not",
		"5s/100ms,":                "must list up to 4 levels such as 5s/100ms",
		"none,5s":                  "must list up to 4 levels such as 5s/100ms",
		"5s 2s":                    "must list up to 4 levels such as 5s/100ms",
		"2h":                       "2h0m0s is longer than 1h0m0s",
		"5s/100ms, 5000ms/100ms":   "the service level 5s/100ms twice",
		"1s,2s,3s,4s,5s":           "more than 4 service levels",
		strings.Repeat("1s", 9000): "must list up to 4 levels such as 5s/100ms",
	} {
		resp, text := f.post(t, chat, own, value)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(text, `"code":"invalid_request"`) || !strings.Contains(strings.ReplaceAll(text, `\"`, `"`), want) || len(text) > 1000 {
			t.Errorf("%.20q: %d %.300s", value, resp.StatusCode, text)
		}
	}
	if got, err := f.explained(t, "m", own, "5s", own, "2s"); err == nil || !strings.Contains(err.Error(), "stands more than once") {
		t.Errorf("two headers: %v, %v", got, err)
	}
}

func TestTheSharedLevelsOfRequestsAreNotCopied(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	all := levelsOf("5s/100ms", "2s/50ms")
	f.UseServiceLevels(gateway.ServiceLevels{All: all})
	one, _ := f.explained(t, "m")
	two, _ := f.explained(t, "m")
	if len(one) != 2 || &one[0] != &two[0] {
		t.Errorf("%v and %v have their own memory", one, two)
	}
	if all[0].FirstToken = time.Minute; one[0] != level("5s/100ms") {
		t.Errorf("the caller of UseServiceLevels changed a request's levels: %v", one)
	}
}

// TestTheTimeInTheQueueCountsForServiceLevels: a client's time for the first token begins when its request arrives, and
// not when a worker has room for it.
func TestTheTimeInTheQueueCountsForServiceLevels(t *testing.T) {
	_, f, first := occupied(t, "first", nil)
	// The second request has levels, the first one has none.
	f.UseServiceLevels(gateway.ServiceLevels{All: fleet.DefaultServiceLevels()})
	f.ask(t, "second", "")
	f.line(t, 1)
	left := time.Now().UnixNano()
	first.cancel()
	var under []fleet.Underway
	testenv.Until(t, "the second is at the worker", func() bool {
		under, _ = f.Fleet.Snapshot().AppendUnderway(nil, 0, time.Now().UnixNano(), 100)
		return len(under) == 1
	})
	if under[0].Arrived <= 0 || under[0].Arrived >= left {
		t.Errorf("the second request arrived at %d, but it waited before %d", under[0].Arrived, left)
	}
}
