package migrate

import (
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

// stack reads the dynamic configuration of vLLM's production stack (src/vllm_router/dynamic_config.py).
func (c *converter) stack(root *config.Node) {
	for _, p := range root.Pairs {
		c.stackKey(p.Key, strings.ReplaceAll(p.Key, "_", "-"), p)
	}
	if root.Get("static_backends") == nil {
		c.notes = append(c.notes, noAddresses)
	}
}

// stackKey reads a key of the production stack that has the meaning of the flag name.
func (c *converter) stackKey(key, name string, p config.Pair) {
	switch name {
	case "static-backends", "session-key":
		if t := text(p.Value); t != "" {
			c.flag(key, name, t)
		}
	case "static-models", "service-discovery", "k8s-service-discovery-type", "enable-router":
		// The router asks the workers for their models; the note about addresses says the rest.
	case "routing-logic":
		switch logic := text(p.Value); logic {
		case "disaggregated_prefill", "disaggregated_prefill_orchestrated":
			c.note(key, p.Value, "the router sends a whole request to one worker: name workers that do prefill and decode")
		case "":
		default:
			c.flag(key, name, logic)
		}
	case "container-port":
		c.flag(key, "port", texts(p.Value)...)
	case "extra-args":
		c.arguments(key, texts(p.Value))
	default:
		c.note(key, unlessSecret(p), "")
	}
}

// helmRouter are the keys of routerSpec that describe the router; the others describe its deployment.
var helmRouter = map[string]string{
	"enableRouter": "enable-router", "serviceDiscovery": "service-discovery", "k8sServiceDiscoveryType": "k8s-service-discovery-type",
	"staticBackends": "static-backends", "staticModels": "static-models", "routingLogic": "routing-logic", "sessionKey": "session-key",
	"extraArgs": "extra-args", "containerPort": "container-port",
}

// helmAdvice says what to do about keys of routerSpec without a counterpart.
var helmAdvice = map[string]string{
	"rootPath": "strip the path in a proxy in front of the router", "otel": "set telemetry.traces (docs/observe.md)",
	"vllmApiKey": "write the engines' key into the file: workers: [{url: …, api_key: …}]", "lmcacheControllerPort": "policy: {type: lmcache_aware, controller_url: …}, if events do not do",
	"engineScrapeInterval": "reports.interval", "requestStatsWindow": "",
}

// helm reads the router's part of the chart's values (vllm-project/production-stack helm/values.yaml).
func (c *converter) helm(root *config.Node) {
	spec := root.Get("routerSpec")
	for _, p := range spec.Pairs {
		key := "routerSpec." + p.Key
		if name, ok := helmRouter[p.Key]; ok {
			c.stackKey(key, name, p)
		} else if advice, ok := helmAdvice[p.Key]; ok {
			c.note(key, unlessSecret(p), advice)
		} else {
			c.note(key, nil, "describes the deployment, not the router")
		}
	}
	for _, p := range root.Pairs {
		if p.Key != "routerSpec" {
			c.note(p.Key, nil, "describes other parts of the deployment")
		}
	}
	if text(spec.Get("staticBackends")) == "" {
		c.notes = append(c.notes, noAddresses)
	}
}
