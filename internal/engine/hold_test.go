package engine

import "testing"

func TestHeldBlocksAreNotEvictedBeforeTheyAreReleased(t *testing.T) {
	e := rankOf(t, 8) // seven usable blocks
	first := &Request{Prompt: prompt(64), Output: prompt(1)}
	if err := e.Submit(first); err != nil {
		t.Fatal(err)
	}
	finishAll(e)
	hashes := append([]Hash(nil), first.Hashes()...)
	reader := &Request{}
	if n := e.Hold(reader, append(hashes[:3:3], 1, hashes[3])); n != 3 {
		t.Fatalf("%d blocks are held, want the 3 before a block that is not cached", n)
	}
	large := &Request{Prompt: tokens(5000, 80), Output: prompt(1)} // five blocks, but only four are free
	if err := e.Submit(large); err != nil {
		t.Fatal(err)
	}
	finishAll(e)
	if s := e.Stats(); s.Waiting != 1 || s.UsedBlocks != 3 {
		t.Fatalf("%+v: want one request that waits for the held blocks", s)
	}
	e.Release(reader)
	finishAll(e)
	if s := e.Stats(); s.Finished != 2 || s.UsedBlocks != 0 {
		t.Errorf("%+v: want two requests finished, and no used block", s)
	}
}
