package card

import (
	"encoding/hex"
	"runtime"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

// startRecord begins the part of the report for programs with the versions of what is below us.
func (s *session) startRecord() {
	r := &doctor.Record{Format: doctor.RecordFormat, Versions: map[string]string{
		"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}}
	for _, f := range s.cfg.Environment {
		switch f.Name {
		case "kernel", "mlx5_core", "firmware":
			r.Versions[f.Name] = f.Value
		}
	}
	s.report.Record = r
}

// recordCheck adds a check that took so long, with the descriptors among its facts. It takes our
// MAC address, which may be the netdev's, out of them.
func (s *session) recordCheck(r *doctor.Result, took time.Duration) {
	c := doctor.CheckRecord{Check: r.Check, State: r.State, Usec: took.Microseconds()}
	mac := ""
	if s.dev != nil {
		mac = hex.EncodeToString(s.dev.MAC())
	}
	for _, f := range r.Facts {
		digits := strings.ReplaceAll(f.Value, " ", "")
		if mac != "" {
			digits = strings.ReplaceAll(digits, mac, strings.Repeat("0", len(mac)))
		}
		switch f.Name {
		case "WQE":
			c.WQEs = append(c.WQEs, digits)
		case "CQE":
			c.CQEs = append(c.CQEs, digits)
		}
	}
	s.report.Record.Checks = append(s.report.Record.Checks, c)
}
