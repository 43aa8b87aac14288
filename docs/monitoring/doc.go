// Package monitoring has tests only: they hold the rules and the dashboard beside this file to the metrics that the library
// has, and to the runbooks.
package monitoring
