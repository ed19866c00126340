//go:build cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// causeOf and retText are tables over the library's return codes (nvml.h of NVML 13.0). The binding's own text calls into
// the library, which may lack that function.
func causeOf(ret nvml.Return) Cause {
	switch ret {
	case nvml.SUCCESS:
		return CauseNone
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED:
		return CauseNoDriver
	case nvml.ERROR_NO_PERMISSION, nvml.ERROR_OPERATING_SYSTEM:
		return CauseNoPermission
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_VGPU_ECC_NOT_SUPPORTED, nvml.ERROR_FREQ_NOT_SUPPORTED,
		nvml.ERROR_RESET_TYPE_NOT_SUPPORTED, nvml.ERROR_DEPRECATED:
		return CauseNotSupported
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return CauseNoLibrary
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return CauseNoSymbol
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_NOT_FOUND:
		return CauseLost
	case nvml.ERROR_RESET_REQUIRED:
		return CauseResetRequired
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_ARGUMENT_VERSION_MISMATCH:
		return CauseVersionMismatch
	case nvml.ERROR_NO_DATA, nvml.ERROR_NOT_READY, nvml.ERROR_NOT_FOUND, nvml.ERROR_TIMEOUT, nvml.ERROR_IN_USE:
		return CauseNoData
	}
	return CauseFailed
}

func retText(ret nvml.Return) string {
	text, ok := map[nvml.Return]string{
		nvml.SUCCESS:                         "success",
		nvml.ERROR_UNINITIALIZED:             "the library is not initialised: the driver went away",
		nvml.ERROR_INVALID_ARGUMENT:          "invalid argument",
		nvml.ERROR_NOT_SUPPORTED:             "not supported",
		nvml.ERROR_NO_PERMISSION:             "no permission",
		nvml.ERROR_ALREADY_INITIALIZED:       "already initialised",
		nvml.ERROR_NOT_FOUND:                 "not found",
		nvml.ERROR_INSUFFICIENT_SIZE:         "insufficient size",
		nvml.ERROR_INSUFFICIENT_POWER:        "external power is not connected",
		nvml.ERROR_DRIVER_NOT_LOADED:         "the driver is not loaded",
		nvml.ERROR_TIMEOUT:                   "timed out",
		nvml.ERROR_IRQ_ISSUE:                 "the kernel has a problem with the GPU's interrupts",
		nvml.ERROR_LIBRARY_NOT_FOUND:         "a library was not found",
		nvml.ERROR_FUNCTION_NOT_FOUND:        "the driver does not have this function",
		nvml.ERROR_CORRUPTED_INFOROM:         "the GPU's infoROM is corrupted",
		nvml.ERROR_GPU_IS_LOST:               "the GPU is lost",
		nvml.ERROR_RESET_REQUIRED:            "the GPU requires a reset",
		nvml.ERROR_OPERATING_SYSTEM:          "blocked by the operating system",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH:   "the library and the loaded driver are of different versions",
		nvml.ERROR_IN_USE:                    "in use",
		nvml.ERROR_MEMORY:                    "out of memory",
		nvml.ERROR_NO_DATA:                   "no data",
		nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:    "not supported while ECC is on",
		nvml.ERROR_INSUFFICIENT_RESOURCES:    "insufficient resources",
		nvml.ERROR_FREQ_NOT_SUPPORTED:        "frequency not supported",
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH: "the driver does not know this version of the struct",
		nvml.ERROR_DEPRECATED:                "deprecated",
		nvml.ERROR_NOT_READY:                 "not ready",
		nvml.ERROR_GPU_NOT_FOUND:             "no GPU was found",
		nvml.ERROR_INVALID_STATE:             "invalid state",
		nvml.ERROR_RESET_TYPE_NOT_SUPPORTED:  "reset type not supported",
		nvml.ERROR_UNKNOWN:                   "unknown error",
	}[ret]
	if !ok {
		text = "error"
	}
	return fmt.Sprintf("%s (code %d)", text, int(ret))
}

// retFix is what to do when initialising fails; "" where that is not known.
func retFix(ret nvml.Return) string {
	switch causeOf(ret) {
	case CauseNoDriver:
		return ": load it (modprobe nvidia), or give the container the GPU's devices"
	case CauseNoPermission:
		return ": let this user open /dev/nvidiactl and /dev/nvidia*, and let the container's device rules allow them"
	case CauseVersionMismatch:
		return ": the driver was upgraded; reload it or reboot, and restart this process"
	}
	return ""
}
