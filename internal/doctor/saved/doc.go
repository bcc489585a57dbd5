// Package saved keeps what the doctor looks at in a directory, without addresses and serial
// numbers, and looks at such a directory in place of the machine.
package saved
