// Package doctor is the form of what was found out about a machine and its card: the results of
// checks, one per line, as text for people and as JSON for programs. Package card makes those of a
// card that is opened for it, package host those that reading alone can give.
package doctor
