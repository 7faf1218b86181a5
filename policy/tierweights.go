package policy

import "github.com/warmpath/warmpath/block"

// TierWeights are the worth of a matched token by the tier of its block, 0 to 1: in the accelerator's memory (GPU), in
// host memory (CPU), on disk, and in remote storage.
type TierWeights struct {
	GPU    float64 `yaml:"gpu"`
	CPU    float64 `yaml:"cpu"`
	Disk   float64 `yaml:"disk"`
	Remote float64 `yaml:"remote"`
}

// Validate returns all weights outside 0..1.
func (w TierWeights) Validate() error {
	var wrong Problems
	wrong.Within("gpu", w.GPU, 0, 1)
	wrong.Within("cpu", w.CPU, 0, 1)
	wrong.Within("disk", w.Disk, 0, 1)
	wrong.Within("remote", w.Remote, 0, 1)
	return wrong.Join()
}

// ByTier returns the weights in the order of tiers.
func (w TierWeights) ByTier() [block.NumTiers]float64 {
	return [block.NumTiers]float64{block.TierGPU: w.GPU, block.TierCPU: w.CPU, block.TierDisk: w.Disk, block.TierRemote: w.Remote}
}
