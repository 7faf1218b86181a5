package main

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/test/testenv"
)

func TestValuesUpToTheNextFlagBelongToAFlagWithManyValues(t *testing.T) {
	for _, test := range [][2]string{
		{"serve --worker-urls http://a http://b --policy random", "serve --worker-urls=http://a --worker-urls=http://b --policy random"},
		{"serve --worker-urls=http://a --worker-urls http://b", "serve --worker-urls=http://a --worker-urls=http://b"},
		{"serve --prefill http://a 8998 --decode http://b", "serve --prefill=http://a --prefill=8998 --decode=http://b"},
		{"serve --worker-urls", "serve --worker-urls"},
		{"serve --worker-urls --policy random", "serve --worker-urls --policy random"},
		{"serve --port 1 x", "serve --port 1 x"},
		{"sim --worker-urls a b", "sim --worker-urls a b"},
		{"", ""},
	} {
		if diff := cmp.Diff(strings.Fields(test[1]), joinValues(strings.Fields(test[0]))); diff != "" && test[0] != "" {
			t.Errorf("%s (-want +got):\n%s", test[0], diff)
		}
	}
}

// A router with the command line of another router serves, and its log says what each flag became.
func TestTheCommandLineOfAnotherRouterServes(t *testing.T) {
	port := strconv.Itoa(testenv.FreePort(t))
	root := newRoot()
	var log bytes.Buffer
	root.SetErr(&log)
	root.SetArgs(joinValues(strings.Fields("serve --worker-urls http://127.0.0.1:1 http://127.0.0.1:2 --policy cache_aware --cache-threshold 0.4 --host 127.0.0.1 --port " +
		port + " --prometheus-port 0 --log-level warning --retry-max-retries 1 --cb-success-threshold 3")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the router starts, drains and ends
	if err := root.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
	// The log level is that of --log-level, so only what needs attention is in the log.
	if text := log.String(); !strings.Contains(text, "--cb-success-threshold 3") || strings.Contains(text, "--retry-max-retries") {
		t.Errorf("the log is\n%s", text)
	}
}
