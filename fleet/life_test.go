package fleet

import "testing"

func TestAnotherProcessIsToldByItsSigns(t *testing.T) {
	for _, test := range []struct {
		name    string
		before  Signs
		next    Signs
		restart bool
	}{
		{"the same", Signs{Started: 100, Tokens: 50, Version: "1", Blocks: 7, Seed: 3}, Signs{Started: 100, Tokens: 60, Version: "1", Blocks: 7, Seed: 3}, false},
		{"nothing reported", Signs{Started: 100, Tokens: 50, Version: "1"}, Signs{}, false},
		{"nothing known", Signs{}, Signs{Started: 100, Tokens: 50, Version: "1", Blocks: 7, Seed: 3}, false},
		{"a later start", Signs{Started: 100}, Signs{Started: 101}, true},
		{"an earlier start is another process behind the address", Signs{Started: 100}, Signs{Started: 90}, false},
		{"fewer tokens", Signs{Tokens: 50}, Signs{Tokens: 49}, true},
		{"fewer tokens of one start", Signs{Started: 100, Tokens: 50}, Signs{Started: 100, Tokens: 49}, false},
		{"another version", Signs{Version: "1"}, Signs{Version: "2"}, true},
		{"another capacity", Signs{Blocks: 7}, Signs{Blocks: 8}, true},
		{"another seed", Signs{Seed: 3}, Signs{Seed: 4}, true},
	} {
		f := New(Config{})
		id := f.Put("http://a", Facts{})
		if f.Answered(id, test.before) {
			t.Errorf("%s: the first answer is a restart", test.name)
		}
		if got := f.Answered(id, test.next); got != test.restart {
			t.Errorf("%s: restarted is %v", test.name, got)
		}
		if f.Answered(id, test.next) {
			t.Errorf("%s: one restart is reported twice", test.name)
		}
		if got := f.Snapshot().ByID(id).Incarnation; got != map[bool]uint64{true: 1}[test.restart] {
			t.Errorf("%s: incarnation %d", test.name, got)
		}
	}
}

func TestSignsAreThoseOfThePresentProcess(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", Facts{})
	want := func(what string, s Signs, incarnation uint64) {
		t.Helper()
		if got, n, ok := f.Signs(id); got != s || n != incarnation || !ok {
			t.Errorf("%s: %+v of incarnation %d, present: %v", what, got, n, ok)
		}
	}
	want("before the first answer", Signs{}, 0)
	f.Answered(id, Signs{Version: "1", Seed: 3})
	f.Answered(id, Signs{Started: 100})
	want("after two answers", Signs{Started: 100, Version: "1", Seed: 3}, 0)
	f.Answered(id, Signs{Started: 200})
	want("after a restart", Signs{Started: 200}, 1)
	f.Remove(id)
	if _, _, ok := f.Signs(id); ok {
		t.Error("a worker that left has signs")
	}
}

func TestAnAnswerAfterARefusedConnectionIsOfAnotherProcessOnce(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", Facts{})
	f.Answered(id, Signs{})
	f.Refused(id)
	f.Refused(id)
	if !f.Answered(id, Signs{}) || f.Answered(id, Signs{}) {
		t.Error("want one restart")
	}
	f.Remove(id)
	id = f.Put("http://a", Facts{})
	if got := f.Snapshot().ByID(id).Incarnation; got != 2 {
		t.Errorf("incarnation %d after it left and came back, want 2", got)
	}
}
