package main

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
)

// The program that reads the access log from the standard output ends. The router serves on.
func TestTheRouterOutlivesTheReaderOfItsLog(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	router := exec.Command(self, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--worker", "http://127.0.0.1:1,events=none", "--access-log", "stdout")
	router.Args[0], router.Stdout = "warmpath", in // TestMain runs the command of this name
	log, err := router.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	_ = in.Close()
	address := ""
	lines := bufio.NewScanner(log)
	for address == "" && lines.Scan() {
		if m := regexp.MustCompile(`msg=serving listen=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	for range 2 {
		resp, err := http.Get("http://" + address + "/v1/models") // its line is written at the end at the latest
		if err != nil {
			t.Error(err)
			continue
		}
		_ = resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	if err := router.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for lines.Scan() { // until the router has ended
	}
	if err := router.Wait(); err != nil {
		t.Errorf("the router ended: %v", err)
	}
}
