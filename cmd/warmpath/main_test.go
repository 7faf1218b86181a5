package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){
		"warmpath": func() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// leakChecked runs the tests and then fails when goroutines are left.
type leakChecked struct{ *testing.M }

func (l leakChecked) Run() int {
	code := l.M.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true,
		// If a command that should fail serves instead, this deadline ends the test.
		Deadline: time.Now().Add(3 * time.Minute),
	})
}
