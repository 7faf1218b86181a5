package migrate

import (
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

// stack reads the dynamic configuration of vLLM's production stack (src/vllm_router/dynamic_config.py).
func (c *converter) stack(root *config.Node) {
	labelled := c.labelled(root)
	for _, p := range root.Pairs {
		name := strings.ReplaceAll(p.Key, "_", "-")
		if labelled && (name == "static-backends" || strings.HasSuffix(name, "-model-labels")) {
			continue
		}
		c.stackKey(p.Key, name, p)
	}
	if root.Get("static_backends") == nil {
		c.notes = append(c.notes, noAddresses)
	}
}

// labelled reads the workers of a configuration whose labels say which of them prefill and which decode. It reports
// whether there are such labels.
func (c *converter) labelled(root *config.Node) bool {
	split := func(key string) []string {
		all := strings.Split(text(root.Get(key)), ",")
		for i := range all {
			all[i] = strings.TrimSpace(all[i])
		}
		return all
	}
	urls, labels := split("static_backends"), split("static_model_labels")
	roles := map[string]string{}
	for flag, key := range map[string]string{"prefill": "prefill_model_labels", "decode": "decode_model_labels"} {
		for _, label := range split(key) {
			roles[label] = flag
		}
	}
	delete(roles, "")
	if len(roles) == 0 || len(urls) != len(labels) {
		return false
	}
	of := map[string][]string{}
	for i, url := range urls {
		role := roles[labels[i]]
		if role == "" {
			role = "worker-urls"
		}
		of[role] = append(of[role], url)
	}
	for _, flag := range []string{"worker-urls", "prefill", "decode"} {
		if len(of[flag]) > 0 {
			c.flag("static_backends", flag, of[flag]...)
		}
	}
	return true
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
			c.note(key, p.Value, "the policy marginal chooses the workers, and a request is divided if that is predicted to cost less (disaggregation.mode); give workers their roles (docs/prefill-decode.md)")
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
