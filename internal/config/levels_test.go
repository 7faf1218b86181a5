package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
)

// filled returns the configuration of a file with text, and its error as Load returns it.
func filled(t *testing.T, text string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(path, nil)
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), path, "f"))
	}
	return cfg, err
}

func TestServiceLevelsAreReadForAllModelsTenantsAndRequests(t *testing.T) {
	loose := fleet.ServiceLevel{FirstToken: 5 * time.Second, PerToken: 100 * time.Millisecond}
	strict := fleet.ServiceLevel{FirstToken: 2 * time.Second, PerToken: 50 * time.Millisecond}
	first := fleet.ServiceLevel{FirstToken: time.Second}
	type lists = map[string][]fleet.ServiceLevel
	for text, want := range map[string]gateway.ServiceLevels{
		"":                   {All: fleet.DefaultServiceLevels(), ByModel: lists{}, ByTenant: lists{}},
		"service_levels: []": {All: []fleet.ServiceLevel{}, ByModel: lists{}, ByTenant: lists{}},
		"service_levels: [{first_token: 2s, per_token: 50ms}]": {All: []fleet.ServiceLevel{strict}, ByModel: lists{}, ByTenant: lists{}},
		`
gateway: {tenant_header: x-customer}
service_levels:
  - first_token: 5s
    per_token: 100ms
  - first_token: 1s
model_service_levels: {org/m-1.5: [{first_token: 2s, per_token: 50ms}]}
tenant_service_levels:
  acme: []
  other: [{first_token: 1s}, {first_token: 5s, per_token: 100ms}]
request_service_levels: true
`: {All: []fleet.ServiceLevel{loose, first}, ByModel: lists{"org/m-1.5": {strict}}, ByTenant: lists{"acme": {}, "other": {first, loose}}, ByRequest: true},
	} {
		cfg, err := filled(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, cfg.GatewayLevels()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	if d := fleet.DefaultServiceLevels(); len(d) != 2 || d[0] != loose || d[1] != strict {
		t.Errorf("the defaults are %v", d)
	}
}

func TestEachMistakeInServiceLevelsIsReportedAtItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"service_levels: [{first_token: 0s}]":                        "f:1:32: service_levels[0].first_token: the time is missing or 0: set a time such as 5s",
		"service_levels: [{per_token: 50ms}]":                        "f:1:18: service_levels[0].first_token: the time is missing or 0",
		"service_levels: [{first_token: 1s, per_token: -50ms}]":      "f:1:47: service_levels[0].per_token: -50ms is negative; 0 is no limit",
		"service_levels: [{first_token: 2h}]":                        "f:1:32: service_levels[0].first_token: 2h0m0s is longer than 1h0m0s, the largest value",
		"service_levels: [{first_token: 1s, per_token: 61m}]":        "f:1:47: service_levels[0].per_token: 1h1m0s is longer than 1h0m0s, the largest value",
		"service_levels: [{}]":                                       "f:1:18: service_levels[0].first_token: the time is missing or 0",
		"service_levels: [{first_token: }]":                          "f:1:31: service_levels[0].first_token: the time is missing or 0",
		"service_levels:\n- \n":                                      "service_levels[0].first_token: the time is missing or 0",
		"service_levels:":                                            "f:1:17: service_levels: there is no list: write [] for no service levels",
		"listen: :1\nservice_levels: null\nworkers: []":              "f:2:17: service_levels: there is no list: write [] for no service levels",
		"service_levels: none":                                       `f:1:17: "none" stands where a list is expected: a line with - for each, such as - {first_token: 5s, per_token: 100ms}; write [] for no service levels`,
		"service_levels: [{first_token: soon}]":                      `f:1:32: "soon" is not a duration such as 50ms, 2s or 1m30s`,
		"service_levels: [{first: 1s}]":                              "unknown field service_levels.first (known: first_token, per_token)",
		"service_levels: [{first_tokn: 1s}]":                         "unknown field service_levels.first_tokn; did you mean service_levels.first_token?",
		"service_levels: [5s/100ms]":                                 `f:1:18: "5s/100ms" stands where a service level is expected: a level is written as {first_token: 5s, per_token: 100ms}`,
		"service_levels: 5s/100ms":                                   `f:1:17: "5s/100ms" stands where a list is expected: a line with - for each, such as - {first_token: 5s, per_token: 100ms}`,
		"service_levels: [{first_token: 1s}, {first_token: 1000ms}]": "f:1:37: service_levels[1]: 1s is listed twice, first as service_levels[0]",
		"service_levels:\n- first_token: 1s\n  per_token: 100ms\n- first_token: 1s\n  per_token: 100ms":                   "f:4:3: service_levels[1]: 1s/100ms is listed twice, first as service_levels[0]",
		"service_levels: [{first_token: 1s}, {first_token: 2s}, {first_token: 3s}, {first_token: 4s}, {first_token: 5s}]": "f:1:17: service_levels: 5 service levels, at most 4",
		"model_service_levels: {m: [{first_token: -1s}]}":                                                                 "f:1:42: model_service_levels.m[0].first_token: -1s is not positive",
		"model_service_levels: {a.b/c-1: }":                                                                               "model_service_levels.a.b/c-1: there is no list: write [] for no service levels",
		"model_service_levels: {m: [1s]}":                                                                                 `"1s" stands where a service level is expected`,
		"model_service_levels: {m: 1s}":                                                                                   "such as - {first_token: 5s, per_token: 100ms}",
		"model_service_levels: [{first_token: 1s}]":                                                                       "f:1:23: a list stands where keys with values are expected",
		"gateway: {tenant_header: x-a}\ntenant_service_levels: {a: [{first_token: 0s}]}":                                  "f:2:43: tenant_service_levels.a[0].first_token: the time is missing or 0",
		"gateway: {tenant_header: x-a}\ntenant_service_levels: {'': []}":                                                  "f:2:24: tenant_service_levels: a tenant has no name",
		"tenant_service_levels: {a: []}":                                                                                  "f:1:24: tenant_service_levels: gateway.tenant_header is empty, so a tenant is a hash of a key",
		"gateway: {tenant_header: x-api-key}\ntenant_service_levels: {a: []}":                                             "f:2:24: tenant_service_levels: gateway.tenant_header is x-api-key, whose values are keys",
		"request_service_levels: [{first_token: 1s}]":                                                                     "a list stands where true or false is expected",
	} {
		if _, err := filled(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v\nwant %s", text, err, want)
		}
	}
}

// The names of these keys end like those of secrets.
func TestTheTimesOfServiceLevelsAreNoSecrets(t *testing.T) {
	_, err := filled(t, "service_levels: [{first_token: soon, per_token: fast-enough}]\nlisten: fast-enough\nadmin: {key: per_token-secret-1}\nhub: {token: per_token-secret-1}")
	for _, want := range []string{`"soon" is not a duration`, `"fast-enough" is not a duration`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "secret-1") {
		t.Errorf("a secret is shown: %v", err)
	}
}
