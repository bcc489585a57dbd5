package httpd

import (
	"fmt"
	"net/http"
	"strings"
)

// Check is a check that /-/healthz runs in addition to the server's own. Run is called at each
// request, from many goroutines, and returns at once; its error is part of the answer.
type Check struct {
	Name string // such as "device"
	Run  func() error
}

// healthz answers 200 and "ok", or 503 and "failing", and then one line for each check.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	var lines strings.Builder
	verdict, status := "ok", http.StatusOK
	fmt.Fprintf(&lines, "connections: %d of %d\n", s.table.size(), s.table.max)
	checks := s.cfg.Checks
	if s.root != nil {
		checks = append([]Check{{"root directory", s.checkRoot}}, checks...)
	}
	for _, c := range checks {
		outcome := "ok"
		if err := c.Run(); err != nil {
			outcome = err.Error()
			verdict, status = "failing", http.StatusServiceUnavailable
		}
		fmt.Fprintf(&lines, "%s: %s\n", c.Name, outcome)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s\n%s", verdict, lines.String())
}

func (s *Server) checkRoot() error {
	_, err := s.root.Stat(".")
	return err
}
