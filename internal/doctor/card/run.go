package card

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

// check describes one line of the report.
type check struct {
	name   string
	run    func(*session) (saw string, err error)
	advice string // what to do when it fails
	// anyway: it makes sense on a card that did not open.
	anyway bool
}

// skip is the error of a check that could not be tried, and the reason.
type skip string

func (s skip) Error() string { return string(s) }

// Run tries the card out and reports. A ctx that is done skips what is left, but for closing the
// device. Nothing it opened is left behind; the last line of the report says so.
func Run(ctx context.Context, cfg Config) doctor.Report {
	cfg.setDefaults()
	s := &session{ctx: ctx, cfg: cfg, report: doctor.Report{Title: "first contact",
		Device: cfg.NIC.Device, Facts: cfg.Environment}, fds: openFiles()}
	s.startRecord()
	facts, caps := capabilities(cfg.OpenNode)
	s.report.Facts, s.report.Record.Capabilities = append(s.report.Facts, facts...), caps
	for _, c := range allChecks() {
		s.runCheck(c)
	}
	return s.report
}

// runCheck runs one check and adds its line to the report.
func (s *session) runCheck(c check) {
	r, start := doctor.Result{Check: c.name, State: doctor.OK}, time.Now()
	saw, err := s.tryCheck(c)
	var skipped skip
	switch {
	case errors.As(err, &skipped):
		r.State, r.Saw = doctor.Skipped, string(skipped)
	case err != nil:
		r.State, r.Saw, r.Do = doctor.Failed, err.Error(), c.advice
	default:
		r.Saw = saw
	}
	r.Facts, s.facts = s.facts, nil
	s.report.Results = append(s.report.Results, r)
	s.recordCheck(&r, time.Since(start))
}

func (s *session) tryCheck(c check) (string, error) {
	switch {
	case c.anyway:
	case s.ctx.Err() != nil:
		return "", skip(fmt.Sprintf("there was no time left: %v", context.Cause(s.ctx)))
	case s.dev == nil:
		return "", skip("the device did not open")
	case s.dev.Err() != nil:
		return "", fmt.Errorf("the device has failed before: %w", s.dev.Err())
	}
	return c.run(s)
}
