//go:build !race

package upstream

import "testing"

func bulk(*testing.T) {}
