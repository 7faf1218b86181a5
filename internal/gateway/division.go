package gateway

import (
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

// DivisionOf returns the predicted milliseconds of both ways in the form of the admin API; nil if they were not
// compared.
func DivisionOf(d *policy.Division) *telemetry.Division {
	if d.Prefill == 0 && d.Decode == 0 {
		return nil
	}
	return &telemetry.Division{WholeMS: telemetry.Finite(d.Whole), PrefillMS: telemetry.Finite(d.Prefill), DecodeMS: telemetry.Finite(d.Decode), TransferMS: telemetry.Finite(d.Transfer)}
}
