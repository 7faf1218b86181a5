package tenant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// saltOf returns the key of a tenant's cache salts: an HMAC of the tenant's name under the operator's secret. It is the
// same after a restart and at each replica with the same secret. Nobody without the secret can compute it from the
// name.
func saltOf(secret []byte, name string) (key [sha256.Size]byte) {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("warmpath tenant cache salt\x00" + name))
	mac.Sum(key[:0])
	return key
}

// Salt returns the cache_salt of a request of the tenant, or "" if the tenant's cached prompts are shared with others.
// own is the salt that the client wrote: requests with different salts stay apart, and no salt of a client leads to the
// prompts of another tenant.
func (t *Tenant) Salt(own string) string {
	if t.CacheSalt != SaltOwn {
		return ""
	}
	mac := hmac.New(sha256.New, t.salt[:])
	mac.Write([]byte(own))
	var sum [sha256.Size]byte
	// 128 bits are enough for a name that nobody can guess. vLLM takes salts of up to 128 characters.
	return hex.EncodeToString(mac.Sum(sum[:0])[:16])
}
