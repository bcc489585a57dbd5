package wire

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// FaultConfig says what goes wrong on a wire. Drop, Duplicate, Reorder and Corrupt are
// probabilities from 0 to 1, drawn for each frame on its own, each direction with its own sequence
// of random numbers. The zero value is a perfect wire.
type FaultConfig struct {
	Drop      float64
	Duplicate float64
	Reorder   float64       // held back until 1 to 8 later frames have passed, 10 ms at most
	Corrupt   float64       // one bit of the frame flips, as in a switch whose memory fails
	Delay     time.Duration // of every frame; order is kept
	Clock     clock.Clock   // of delays; default the system's
	Seed      uint64
}

// ParseFaults reads the text form that all programs take: pairs of key and
// value with commas between, such as
//
//	drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=1ms,seed=7
//
// A probability is a percentage or a number from 0 to 1. The empty text is the zero FaultConfig.
func ParseFaults(s string) (FaultConfig, error) {
	var c FaultConfig
	if s == "" {
		return c, nil
	}
	seen := map[string]bool{}
	for _, pair := range strings.Split(s, ",") {
		key, value, _ := strings.Cut(pair, "=")
		if seen[key] {
			return FaultConfig{}, fmt.Errorf("fault %q appears twice", key)
		}
		seen[key] = true
		if err := c.setPair(key, value); err != nil {
			return FaultConfig{}, err
		}
	}
	return c, nil
}

// setPair parses one pair.
func (c *FaultConfig) setPair(key, value string) (err error) {
	switch key {
	case "drop":
		c.Drop, err = parseProbability(value)
	case "dup":
		c.Duplicate, err = parseProbability(value)
	case "reorder":
		c.Reorder, err = parseProbability(value)
	case "corrupt":
		c.Corrupt, err = parseProbability(value)
	case "delay":
		c.Delay, err = time.ParseDuration(value)
		if err == nil && c.Delay < 0 {
			err = fmt.Errorf("%v is negative", c.Delay)
		}
	case "seed":
		c.Seed, err = strconv.ParseUint(value, 0, 64)
	default:
		return fmt.Errorf("unknown fault %q (drop, dup, reorder, corrupt, delay, seed)", key)
	}
	if err != nil {
		return fmt.Errorf("fault %s: %w", key, err)
	}
	return nil
}

func parseProbability(s string) (float64, error) {
	number, scale := s, 1.0
	if p, ok := strings.CutSuffix(s, "%"); ok {
		number, scale = p, 100
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, err
	}
	if v /= scale; !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("%s is not a probability (0%% to 100%%)", s)
	}
	return v, nil
}

// String returns the text form; ParseFaults of it gives c back.
func (c FaultConfig) String() string {
	var parts []string
	for _, p := range []struct {
		key string
		v   float64
	}{{"drop", c.Drop}, {"dup", c.Duplicate}, {"reorder", c.Reorder}, {"corrupt", c.Corrupt}} {
		if p.v != 0 {
			parts = append(parts, p.key+"="+formatProbability(p.v))
		}
	}
	if c.Delay != 0 {
		parts = append(parts, "delay="+c.Delay.String())
	}
	if c.Seed != 0 {
		parts = append(parts, "seed="+strconv.FormatUint(c.Seed, 10))
	}
	return strings.Join(parts, ",")
}

// formatProbability returns a percentage, unless that would round.
func formatProbability(v float64) string {
	percent := strconv.FormatFloat(v*100, 'g', -1, 64) + "%"
	if back, err := parseProbability(percent); err == nil && back == v {
		return percent
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// MarshalText makes FaultConfig usable with flag.TextVar.
func (c FaultConfig) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText makes FaultConfig usable with flag.TextVar.
func (c *FaultConfig) UnmarshalText(b []byte) error {
	parsed, err := ParseFaults(string(b))
	if err == nil {
		*c = parsed
	}
	return err
}
