//go:build !linux

package host

// askKernel has nobody to ask.
func (c *Config) askKernel() {}
