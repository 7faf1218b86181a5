package indexer

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// grouped puts a worker of a group into the fleet. It serves the models.
func (w *world) grouped(url, group string, models ...fleet.Model) *fleet.Worker {
	w.t.Helper()
	for i := range models {
		models[i].ID = pooled(models[i].ID, group)
		if models[i].Parent != "" {
			models[i].Parent = pooled(models[i].Parent, group)
		}
	}
	return w.worker(pooled(url, group), func(f *fleet.Facts) { f.Models = models })
}

// begin begins a call over gRPC with one question and a stream of answers.
func (w *world) begin(method string, q encoder) interface{ RecvMsg(any) error } {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	s, err := open(ctx, w.dial(), method)
	if err == nil {
		err = errors.Join(s.SendMsg(q), s.CloseSend())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// A group sees no blocks of another group.
func TestChangesAndDumpsAreThoseOfTheGroup(t *testing.T) {
	w := serve(t, Config{}, nil)
	a, b := w.grouped("http://a", "", fleet.Model{ID: "m"}), w.grouped("http://b", "t", fleet.Model{ID: "m"})
	w.store(a.Holders[0], prompt(1, 64), kvindex.Stored{})
	w.store(b.Holders[0], prompt(2, 64), kvindex.Stored{})
	for about, want := range map[selection][]string{
		{}: {"http://a", "http://b"}, {"", "t"}: {"http://b"}, {"", "default"}: {"http://a"}, {"m", "t"}: {"http://b"}, {"m", ""}: {"http://a"},
	} {
		dumped := map[string]bool{}
		query := "?model_name=" + about.model
		if about.group != "" {
			query += "&tenant_id=" + about.group
		}
		for r := w.open("/dump" + query); ; {
			l := read(t, r)
			if l.End {
				break
			}
			dumped[l.Worker] = true
		}
		if got := slices.Sorted(maps.Keys(dumped)); !slices.Equal(got, want) {
			t.Errorf("GET /dump%s has blocks of %v, want %v", query, got, want)
		}
		clear(dumped)
		for s := w.begin("Dump", &dumpRequest{selection: about}); ; {
			var one run
			if err := s.RecvMsg(&one); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			dumped[one.worker] = true
		}
		if got := slices.Sorted(maps.Keys(dumped)); !slices.Equal(got, want) {
			t.Errorf("Dump of %+v has blocks of %v, want %v", about, got, want)
		}

		lines, s := w.open("/changes"+query), w.begin("Changes", &changeRequest{about})
		read(t, lines)
		if err := s.RecvMsg(new(change)); err != nil { // the stream begins
			t.Fatal(err)
		}
		salt := kvindex.Stored{Scope: block.Scope{Salt: about.model + "/" + about.group}}
		for _, h := range []fleet.Holder{a.Holders[0], b.Holders[0]} {
			w.store(h, prompt(3, 64), salt)
		}
		for _, worker := range want {
			if l := read(t, lines); l.Worker != worker {
				t.Errorf("GET /changes%s has a change of %s, want %s", query, l.Worker, worker)
			}
			var c change
			if err := s.RecvMsg(&c); err != nil || c.worker != worker {
				t.Errorf("Changes of %+v has a change of %s, want %s: %v", about, c.worker, worker, err)
			}
		}
	}
	for _, path := range []string{"/dump", "/changes"} {
		if status, text := w.ask("GET", path+"?tenant_id=other", ""); status != http.StatusNotFound || !strings.Contains(text, `group \"other\" has no workers`) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for method, q := range map[string]encoder{"Dump": &dumpRequest{selection: selection{group: "other"}}, "Changes": &changeRequest{selection{group: "other"}}} {
		if err := w.begin(method, q).RecvMsg(new(rawMessage)); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// The model may be left out if the group has only one, whatever other groups have.
func TestAQuestionWithoutAModelIsAboutTheOnlyOneOfItsGroup(t *testing.T) {
	w := serve(t, Config{}, nil)
	p := prompt(1, 100)
	about := func(group string) string { return `{"routing_group":"` + group + `","token_ids":` + list(p) + `}` }
	w.store(w.grouped("http://b", "t", fleet.Model{ID: "n"}, fleet.Model{ID: "sql", Parent: "n"}).Holders[0], p[:32], kvindex.Stored{})
	if status, text := w.ask("POST", "/query", about("")); status != http.StatusNotFound || !strings.Contains(text, `group \"default\" has no workers`) {
		t.Errorf("only another group has a model: %d %s", status, text)
	}
	w.store(w.grouped("http://a", "", fleet.Model{ID: "m"}).Holders[0], p[:64], kvindex.Stored{})
	w.grouped("http://c", "u", fleet.Model{ID: "x"})
	w.grouped("http://d", "u", fleet.Model{ID: "y"})
	for group, want := range map[string]map[string]int{"": {"http://a": 64}, "default": {"http://a": 64}, "t": {"http://b": 32}} {
		got := map[string]int{}
		for worker, ranks := range w.scores("/query", about(group)) {
			got[worker] = ranks["0"]
		}
		if !maps.Equal(got, want) {
			t.Errorf("in group %q: %v, want %v", group, got, want)
		}
	}
	if status, text := w.ask("POST", "/query", about("u")); status != http.StatusBadRequest || !strings.Contains(text, "in model_name: x, y\"") {
		t.Errorf("a group with two models: %d %s", status, text)
	}
	var got answer
	if err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{group: "t", tokens: p}, &got); err != nil || got.model != "n" || len(got.scores) != 1 {
		t.Errorf("over gRPC: %+v, %v", got, err)
	}
}

// An adapter may be named as the model, and in its group, too. The events name it without the group.
func TestAnAdapterOfAGroupMayBeNamedAsTheModel(t *testing.T) {
	w := serve(t, Config{}, nil)
	p := prompt(1, 200)
	for group, n := range map[string]int{"": 64, "t": 96} {
		one := w.grouped("http://a", group, fleet.Model{ID: "m"}, fleet.Model{ID: "sql", Parent: "m"})
		w.store(one.Holders[0], p[:32], kvindex.Stored{})
		w.store(one.Holders[0], p[:n], kvindex.Stored{Scope: block.Scope{LoRA: "sql"}})
	}
	for group, n := range map[string]int{"": 64, "t": 96} {
		for _, named := range []string{`"model":"sql"`, `"model":"m","lora_name":"sql"`} {
			if got := w.scores("/query", `{`+named+`,"tenant_id":"`+group+`","token_ids":`+list(p)+`}`); got["http://a"]["0"] != n {
				t.Errorf("%s in group %q: %v, want %d", named, group, got, n)
			}
		}
		if got := w.scores("/query", `{"model":"m","tenant_id":"`+group+`","token_ids":`+list(p)+`}`); got["http://a"]["0"] != 32 {
			t.Errorf("the base model in group %q: %v", group, got)
		}
	}
}
