// Package kvindex knows which holder has which blocks of the model's KV cache, on which tier and in which cache group.
package kvindex
