package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/indexer"
)

// The settings of routers that ask an index service have no effect in the service, and are no errors there.
func TestTheIndexServiceTakesTheFileOfItsRouters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	text := "index: {url: 'https://index:8090', max_wait: 1s, register: false, key: 0123456789, tls: {server_name: index}}\n" +
		"index_service: {key: 0123456789}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	router, err := config.Load(file, nil)
	if err != nil || router.Index.MaxWait != time.Second {
		t.Fatalf("the router: %v", err)
	}
	service, err := config.Load(file, new(indexFlags).override(newIndex()))
	if err != nil {
		t.Fatalf("the service: %v", err)
	}
	if service.Index.ClientConfig != indexer.DefaultClientConfig() || service.IndexService.Listen != indexer.DefaultListen || service.IndexService.Key == "" {
		t.Errorf("%+v, %+v", service.Index.ClientConfig, service.IndexService)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "register:", "peers: ['https://b:9090'], register:", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if service, err = config.Load(file, new(indexFlags).override(newIndex())); err != nil || service.Index.TLS.ServerName != "index" {
		t.Errorf("with a peer: %+v, %v", service, err)
	}
}
