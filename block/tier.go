package block

// Tier is the memory in which a holder keeps a block. Faster memory has a smaller value. The zero value is TierGPU: if
// an engine names no medium, it means the memory of its accelerator.
type Tier uint8

// The tiers, in the order in which an engine searches them.
const (
	TierGPU    Tier = iota // accelerator memory
	TierCPU                // host memory
	TierDisk               // local disk
	TierRemote             // shared or remote storage, and every unknown medium

	NumTiers = 4
)

var tierNames = [NumTiers]string{"gpu", "cpu", "disk", "remote"}

// String returns the tier's name as configuration, metrics and the admin API write it.
func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return "unknown"
}
