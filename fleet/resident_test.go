package fleet

import "testing"

func TestBlocksOfRequestsUnderWayAreResident(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", Facts{Models: []Model{{ID: "m"}}, BlockSize: 16})
	marks := []Mark{{Key: 1, Blocks: 1}, {Key: 2, Blocks: 2}, {Key: 3, Blocks: 3}, {Key: 4, Blocks: 4}}
	other := []Mark{{Key: 1, Blocks: 1}, {Key: 2, Blocks: 2}, {Key: 33, Blocks: 3}}
	resident := func() int { return f.Snapshot().Resident(0, marks) }
	check := func(when string, want int) {
		t.Helper()
		if got := resident(); got != want {
			t.Errorf("%s: %d marks are resident, want %d", when, got, want)
		}
	}
	check("an idle holder", 0)
	var a, b Reservation
	f.Reserve(&a, 0, Work{ContextBlocks: 3, Marks: other}, 1)
	check("a request that shares two", 2)
	f.Reserve(&b, 0, Work{ContextBlocks: 4, Marks: marks}, 2)
	check("the same prompt", 4)
	b.Release(3)
	check("the same prompt has ended", 2)
	a.Release(4)
	check("all have ended", 0)
	if n := f.Snapshot().Resident(7, marks); n != 0 {
		t.Errorf("%d on a holder that does not exist", n)
	}
}
