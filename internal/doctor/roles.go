package doctor

import (
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/fleet"
)

// transfers examines the role and the connector of the worker: whether the settings contradict the engine, and whether
// the router knows what the connector needs.
func (e *exam) transfers() {
	f := &e.report.Facts
	for _, fault := range e.report.Transfers {
		if fault.Role {
			e.find("role", Error, fault.Seen, "the same role in the settings and in the engine", fault.Fix+roleFix(f.Engine))
			continue
		}
		severity := Warning
		if f.Transfer.LegsOnly { // such a worker gets no other requests
			severity = Error
		}
		e.find("connector", severity, fault.Seen, "a KV connector, by which the worker exchanges KV blocks with others", fault.Fix)
	}
}

func roleFix(engine fleet.Engine) string {
	switch engine {
	case fleet.EngineVLLM:
		return "; vLLM: kv_role in --kv-transfer-config is kv_producer for prefill, kv_consumer for decode, kv_both for both"
	case fleet.EngineSGLang:
		return "; SGLang: --disaggregation-mode"
	}
	return ""
}

// compareRoles finds workers of a model that lack a worker for the other leg.
func compareRoles(model string, group []*exam) (found []Finding) {
	generates := func(e *exam) bool { return e.report.Facts.Role != fleet.RolePrefill }
	if !slices.ContainsFunc(group, generates) {
		return []Finding{{"", "roles", Error, fmt.Sprintf("all workers of %s have the role prefill, so none generates answers, and requests are refused", model),
			"a worker that generates answers", "add a worker with role=decode or role=both; or if this is not the whole fleet, examine all workers in one command"}}
	}
	for _, e := range group {
		f := &e.report.Facts
		pairs := func(other fleet.Role) bool {
			return slices.ContainsFunc(group, func(o *exam) bool {
				r := o.report.Facts.Role
				return o != e && (r == other || r == fleet.RoleBoth) && f.Transfer.Pairs(&o.report.Facts.Transfer)
			})
		}
		name := f.Transfer.Connector
		switch {
		case f.Role == fleet.RolePrefill && name != "" && !pairs(fleet.RoleDecode):
			found = append(found, Finding{e.URL, "same_connector", Error,
				fmt.Sprintf("the prefill worker gets no requests, because no decode worker of %s has its connector, %s", model, name), "a decode worker with the same connector",
				"start the engines of both workers with the same connector; or correct connector= in the settings of the workers"})
		case f.Role == fleet.RoleDecode && f.Transfer.LegsOnly && !pairs(fleet.RolePrefill):
			found = append(found, Finding{e.URL, "same_connector", Error,
				fmt.Sprintf("the decode worker gets no requests: its engine refuses whole requests, and no prefill worker of %s has its connector, %s", model, name),
				"a prefill worker with the same connector", "add a worker with --disaggregation-mode prefill, or start this engine without --disaggregation-mode"})
		}
	}
	return found
}
