package app

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/network"
)

// readCertificates reads the certificates of the listeners.
func (a *App) readCertificates(cfg *config.Config) (err error) {
	if cfg.TLS.On() {
		a.seenCertificates = append(a.seenCertificates, look(cfg.TLS.Files())) // before they are read, as for a reload
		if a.certificates, err = network.ReadCertificates(cfg.TLS); err != nil {
			return fmt.Errorf("tls.%w", err)
		}
		a.warnOfExpiry(a.certificates)
	}
	if cfg.Admin.TLS.On() {
		a.seenCertificates = append(a.seenCertificates, look(cfg.Admin.TLS.Files()))
		if a.adminCertificates, err = network.ReadCertificates(cfg.Admin.TLS); err != nil {
			return fmt.Errorf("admin.tls.%w", err)
		}
		a.warnOfExpiry(a.adminCertificates)
	}
	if cfg.IndexService.TLS.On() {
		a.seenCertificates = append(a.seenCertificates, look(cfg.IndexService.TLS.Files()))
		if a.indexCertificates, err = network.ReadCertificates(cfg.IndexService.TLS); err != nil {
			return fmt.Errorf("index_service.tls.%w", err)
		}
		a.warnOfExpiry(a.indexCertificates)
	}
	return nil
}

// allCertificates returns the certificates of the listeners with TLS.
func (a *App) allCertificates() (all []*network.Certificates) {
	for _, c := range []*network.Certificates{a.certificates, a.adminCertificates, a.indexCertificates} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// reloadCertificates reads certificates again. Connections stay, and new ones use the new certificates.
func (a *App) reloadCertificates(c *network.Certificates) error {
	if err := c.Reload(); err != nil {
		return err
	}
	a.log.Info("certificates reloaded", "files", c.Files(), "expires", c.Expires())
	a.warnOfExpiry(c)
	return nil
}

// expirySoon is the time before the end of a certificate from which on the log warns. Automatic renewals happen
// earlier.
const expirySoon = 7 * 24 * time.Hour

func (a *App) warnOfExpiry(c *network.Certificates) {
	if left := time.Until(c.Expires()); left < expirySoon {
		a.log.Warn("the certificate expires soon, or has expired: renew it; the router reads the new files without a restart", "files", c.Files(), "expires", c.Expires())
	}
}
