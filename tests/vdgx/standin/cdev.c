/*
 * A process that has a function by its own VFIO device and not by its group, as QEMU has by iommufd.
 *   cdev open|bind NODE [SECONDS]     NODE: /dev/vfio/devices/vfioN
 * open: only opens it, which excludes nobody. bind: binds it to an iommufd, too. Prints `held` and waits, for an hour by
 * default; where it may not have it, prints the kernel's reason and ends with 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* struct vfio_device_bind_iommufd of include/uapi/linux/vfio.h, which this machine's headers may not have */
struct bind { uint32_t argsz, flags; int32_t iommufd; uint32_t out_devid; };
#define BIND _IO(';', 100 + 18)

static int failed(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    int device = open(argv[2], O_RDWR | O_CLOEXEC);
    if (device < 0)
        return failed("open");
    if (!strcmp(argv[1], "bind")) {
        struct bind bind = { sizeof bind, 0, open("/dev/iommu", O_RDWR | O_CLOEXEC), 0 };
        if (bind.iommufd < 0)
            return failed("/dev/iommu");
        if (ioctl(device, BIND, &bind) < 0)
            return failed("bind");
    }
    puts("held");
    fflush(stdout);
    sleep(argc > 3 ? atoi(argv[3]) : 3600);
    return 0;
}
