package gateway

import (
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// Answers of a worker that left the fleet do not count. After a restart of a worker, the answers of its earlier process
// do not count.
func TestEvidenceIsOfThePresentWorkers(t *testing.T) {
	var e evidence
	a, b, c := &fleet.Worker{ID: 0}, &fleet.Worker{ID: 1}, &fleet.Worker{ID: 2}
	all := []*fleet.Worker{a, b, c}
	for range minAnswers {
		e.useless(1, a, all)
		e.useless(1, b, all)
		if e.known(1, a, refused, []*fleet.Worker{b}) {
			t.Error("nobody was asked for a second opinion, and yet the refusals are said to be the requests' fault")
		}
		e.confirm(1, a, refused)
		e.confirm(1, b, refused)
		e.served(1, c, true)
	}
	if e.known(1, a, refused, []*fleet.Worker{b, c}) {
		t.Error("one of the others answers well, and yet the requests are said to be at fault")
	}
	if !e.known(1, a, refused, []*fleet.Worker{b}) {
		t.Error("the worker that answered well has left, and yet the others' refusals are not the requests' fault")
	}
	again := &fleet.Worker{ID: 0, Incarnation: 1}
	if !e.distrusted(1, a) || e.distrusted(1, again) {
		t.Error("a restarted worker is distrusted for what the process before it answered")
	}
	e.served(1, again, true)
	e.useless(1, a, all) // this request was under way when the process ended
	if e.distrusted(1, again) || !e.distrusted(1, b) {
		t.Error("an answer of the ended process counts against the new one")
	}
	e.useless(1, &fleet.Worker{ID: 3}, []*fleet.Worker{c, {ID: 3}})
	if n := len(e.scopes[1].workers); n != 2 {
		t.Errorf("%d workers are remembered, two are left", n)
	}
}

// One worker gave useless answers and is good again. Now another worker gives useless answers, and must be blamed for
// them.
func TestAnswersBlamedOnOneWorkerDoNotExcuseAnother(t *testing.T) {
	var e evidence
	a, b := &fleet.Worker{ID: 0}, &fleet.Worker{ID: 1}
	all := []*fleet.Worker{a, b}
	for range memory {
		e.useless(1, a, all)
		e.blame(1, a, refused)
		e.served(1, b, true)
	}
	for range 3 {
		e.served(1, a, true)
		e.useless(1, b, all)
	}
	if e.known(1, b, refused, []*fleet.Worker{a}) {
		t.Error("the requests are said to be at fault, as the other worker gave as many useless answers before")
	}
}

// All workers refused requests, and now one worker sends HTML pages. Other workers' refusals do not show that the
// requests caused the pages.
func TestRefusalsDoNotExcuseAnswersOfAnotherKind(t *testing.T) {
	var e evidence
	a, b := &fleet.Worker{ID: 0}, &fleet.Worker{ID: 1}
	for range minAnswers {
		for _, w := range []*fleet.Worker{a, b} {
			e.useless(1, w, []*fleet.Worker{a, b})
			e.confirm(1, w, refused)
		}
	}
	if !e.known(1, a, refused, []*fleet.Worker{b}) {
		t.Error("both refuse, and yet it is not known to be the requests' fault")
	}
	if e.known(1, a, useless, []*fleet.Worker{b}) {
		t.Error("the page is said to be the request's fault, as all workers refused other requests")
	}
	e.blame(1, a, refused)
	for range longMemory { // after longMemory further answers, the blame no longer counts
		e.confirm(1, a, useless)
	}
	if e.known(1, a, refused, []*fleet.Worker{b}) {
		t.Error("pages that all workers send excuse a refusal that only one gave")
	}
}

// The memory is bounded: if it is full, a new scope (a model at an endpoint) replaces the oldest scope.
func TestTheOldestScopeIsForgotten(t *testing.T) {
	var e evidence
	w := &fleet.Worker{}
	for scope := fleet.Scope(1); scope <= mostScopes+1; scope++ {
		e.useless(scope, w, []*fleet.Worker{w})
	}
	if len(e.scopes) != mostScopes || e.distrusted(1, w) || !e.distrusted(2, w) || !e.distrusted(mostScopes+1, w) {
		t.Errorf("%d scopes are remembered; the oldest is distrusted: %t", len(e.scopes), e.distrusted(1, w))
	}
}
