package tokens

import (
	"fmt"
	"testing"
)

func TestAModelThatDiffersIsNotBelievedUntilTwentyPromptsAgree(t *testing.T) {
	var c checks
	if !c.believed("m") {
		t.Fatal("a model is not believed from the start")
	}
	if turned := c.note("m", "", true); turned || !c.believed("m") {
		t.Error("an equal prompt changed something")
	}
	if turned := c.note("m", "", false); !turned || c.believed("m") || !c.believed("other") {
		t.Error("a different prompt must stop the belief in that model, and in no other")
	}
	for i := range checkPasses {
		if c.believed("m") {
			t.Fatalf("believed again after %d equal prompts", i)
		}
		if turned := c.note("m", "", true); turned != (i == checkPasses-1) {
			t.Errorf("equal prompt %d: turned %v", i, turned)
		}
	}
	if !c.believed("m") || c.checked.Load() != 2+checkPasses || c.differed.Load() != 1 {
		t.Errorf("believed %v, checked %d, differed %d", c.believed("m"), c.checked.Load(), c.differed.Load())
	}
}

func TestTheFirstTwentyOfEachWorkerAreComparedThenOneInAThousand(t *testing.T) {
	var c checks
	workers := []Worker{{URL: "a"}, {URL: "b"}}
	compared := map[string]int{}
	for range 5000 {
		if w, ok := c.due("m", workers, checkFirst); ok {
			compared[w.URL]++
		}
	}
	if sum := compared["a"] + compared["b"]; compared["a"] < checkFirst || compared["b"] < checkFirst || sum != 2*checkFirst+5 {
		t.Errorf("compared %v", compared)
	}
}

func TestWorkersThatComeAndGoAreNotRememberedForEver(t *testing.T) {
	var c checks
	for i := range 10_000 {
		if _, ok := c.due("m", []Worker{{URL: "a"}, {URL: fmt.Sprint(i)}}, 1); !ok {
			t.Fatalf("no prompt of worker %d is compared", i)
		}
		c.due("m", []Worker{{URL: "a"}, {URL: fmt.Sprint(i)}}, 1)
	}
	if n := len(c.of("m").started); n > 100 {
		t.Errorf("%d workers are remembered of two", n)
	}
}
