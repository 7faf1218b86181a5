package main

import (
	"os"
	"testing"

	"github.com/warmpath/warmpath/bench/internal/machine"
)

func TestMeasureLooksUpTheStoredChains(t *testing.T) {
	if _, err := machine.ResidentBytes(); err != nil {
		t.Skipf("skipped: %v", err)
	}
	r, err := measure(5, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	if r.Memberships < 20_000 || r.Distinct < r.Memberships-5*sharedBlocks || r.MatchP50 == 0 || r.IndexBytes == 0 {
		t.Errorf("result %+v", r)
	}
	dir := t.TempDir()
	if err := write(dir, machine.Now(), []result{r}, []result{r}); err != nil {
		t.Fatal(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 4 {
		t.Errorf("%d files written, want JSON and three drawings", len(files))
	}
}
