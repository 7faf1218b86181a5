package config

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// These are environment variables of Hugging Face's tools. A variable has an effect only if the file does not set the
// same value.
const (
	EnvHubToken    = "HF_TOKEN"
	EnvHubEndpoint = "HF_ENDPOINT"
	EnvHubCache    = "HF_HUB_CACHE"
	EnvHubHome     = "HF_HOME"
	EnvHubOffline  = "HF_HUB_OFFLINE"
)

// Hub returns c with its empty fields set from the environment, or else to their defaults.
func Hub(c inprocess.HubConfig) inprocess.HubConfig {
	if c.Endpoint == "" {
		c.Endpoint = os.Getenv(EnvHubEndpoint)
	}
	if c.Endpoint == "" {
		c.Endpoint = inprocess.HubEndpoint
	}
	if c.Cache == "" {
		c.Cache = hubCache()
	}
	c.Token = strings.TrimSpace(os.Getenv(EnvHubToken)) // a line break cannot be in a header
	switch os.Getenv(EnvHubOffline) {
	case "1", "true", "TRUE", "yes", "YES", "on", "ON": // huggingface_hub takes these values for true
		c.Offline = true
	}
	return c
}

func hubCache() string {
	if dir := os.Getenv(EnvHubCache); dir != "" {
		return dir
	}
	if dir := os.Getenv(EnvHubHome); dir != "" {
		return filepath.Join(dir, "hub")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = os.TempDir()
	}
	return filepath.Join(home, ".cache", "huggingface", "hub")
}
